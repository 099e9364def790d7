-- Set fields of `meta`: what the pool is, and what the self-check found.
--
-- KEYS[1]  the pool's key prefix
-- ARGV     1 the leader's token, then field, value, ...; an empty value deletes the field
-- RETURNS  rev
-- ERRORS   FENCED
-- COST     O(fields)
--
-- include: core

local P = core.prefix
local refused = core.fence(ARGV[1])
if refused then
  return refused
end
core.needs_no_memory()
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', P .. 'meta', ARGV[i])
  else
    redis.call('HSET', P .. 'meta', ARGV[i], ARGV[i + 1])
  end
end
return redis.call('INCR', P .. 'rev')
