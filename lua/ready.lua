-- Whether this index may be used: its schema, and what Redis does when memory is out. Read-only.
--
-- KEYS[1]  the pool's key prefix
-- RETURNS  maxmemory-policy, or "" when this user may not ask
-- ERRORS   SCHEMA; POLICY
-- COST     some 50 us
--
-- include: core

local schema = redis.call('HGET', core.prefix .. 'meta', 'schema')
if schema and schema ~= core.schema then
  return core.wrong_schema(schema)
end
local policy = core.policy()
if policy ~= '' and policy ~= 'noeviction' then
  return core.refuse('POLICY', policy)
end
return policy
