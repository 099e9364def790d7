-- Which slot each holder has, together with the nonce under which that is true. Read-only.
--
-- KEYS[1]  the pool's key prefix
-- ARGV     1 the nonce under which the caller knows the slots, or ""
-- RETURNS  [nonce, slots of l1, of l2, of l3], each a flat list of holder, slot; no nonce is "". Only [nonce]
--          when the caller knows that one
-- ERRORS   SCHEMA
-- COST     O(holders), when they changed
--
-- include: core

local schema = redis.call('HGET', core.prefix .. 'meta', 'schema')
if schema and schema ~= core.schema then
  return core.wrong_schema(schema)
end
local reply = { redis.call('GET', core.prefix .. 'slots:version') or '' }
if reply[1] ~= '' and reply[1] == ARGV[1] then
  return reply
end
for i, tier in ipairs(core.tiers) do
  reply[i + 1] = redis.call('HGETALL', core.prefix .. 'slots:' .. tier)
end
return reply
