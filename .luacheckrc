-- Scripts run inside Redis: its globals, and the tables of lua/lib, which the loader puts in place of `-- include:`.
std = "lua51"
max_line_length = 120
read_globals = { "redis", "cjson", "cmsgpack", "struct", "bit", "KEYS", "ARGV", "core", "slots", "bits", "scan" }
