-- What Redis gives a script, and nothing more. (`server` is Valkey's own: scripts say `redis`.)
std = "lua51"
read_globals = { "redis", "cjson", "cmsgpack", "struct", "bit", "KEYS", "ARGV" }
max_line_length = 110

-- A script takes in lua/lib/NAME.lua by the line `-- include: NAME`. Checked alone, a library's functions look
-- unused and a script's calls of them undefined: so each file is told the functions of the libraries it names.
files["lua/lib"] = { ignore = { "211" } }

local function read(path)
  local file = io.open(path)
  local text = file and file:read("*a") or ""
  if file then file:close() end
  return text
end

local function functions_of(text, found)
  for name in text:gmatch("%-%- include: ([%w_]+)") do
    local library = read("lua/lib/" .. name .. ".lua")
    for fn in library:gmatch("local function ([%w_]+)") do found[#found + 1] = fn end
    for variable in library:gmatch("\nlocal ([%w_]+) *=") do found[#found + 1] = variable end
    functions_of(library, found)
  end
  return found
end

local listing = io.popen("ls lua/*.lua lua/lib/*.lua 2>/dev/null")
for path in listing:lines() do
  files[path] = { read_globals = functions_of(read(path), {}) }
end
listing:close()
