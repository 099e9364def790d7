-- Every stream, as one consistent picture. Read-only.
--
-- KEYS[1]  the pool's key prefix
-- RETURNS  [now in ms, rev, stream, its hash as a flat list, stream, ...]
-- ERRORS   none
-- COST     5 us a stream
--
-- include: core

local P = core.prefix
local reply = { core.int(core.now()), tonumber(redis.call('GET', P .. 'rev') or 0) }
for _, name in ipairs(redis.call('SMEMBERS', P .. 'streams')) do
  reply[#reply + 1] = name
  reply[#reply + 1] = redis.call('HGETALL', P .. 'stream:' .. name)
end
return reply
