-- Streams, as one consistent picture. Read-only.
--
-- KEYS[1]  the pool's key prefix
-- ARGV     1 msgpack: a list of instances whose streams are wanted; absent for all
-- RETURNS  [now in ms, rev, stream, its hash as a flat list, stream, ...]
-- ERRORS   none
-- COST     5 us a stream
--
-- include: core

local P = core.prefix
local wanted
if ARGV[1] then
  wanted = {}
  for _, instance in ipairs(cmsgpack.unpack(ARGV[1])) do
    wanted[instance] = true
  end
end
local reply = { core.int(core.now()), tonumber(redis.call('GET', P .. 'rev') or 0) }
for _, name in ipairs(redis.call('SMEMBERS', P .. 'streams')) do
  if not wanted or wanted[string.match(name, '^(.*):')] then
    reply[#reply + 1] = name
    reply[#reply + 1] = redis.call('HGETALL', P .. 'stream:' .. name)
  end
end
return reply
