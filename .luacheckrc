-- What Redis gives a script (`server` is Valkey's own: scripts say `redis`), and the tables of lua/lib, which
-- the loader puts in the place of a line `-- include: NAME`.
std = "lua51"
max_line_length = 120
read_globals = {
  "redis", "cjson", "cmsgpack", "struct", "bit", "KEYS", "ARGV",
  "core", "slots", "bits",
}
