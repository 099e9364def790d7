-- The lease of the one writer, and the list of those who stand by.
--
-- KEYS[1]  the pool's key prefix
-- ARGV[1]  acquire   2 token, 3 lease ms, 4 member, 5 "1" warm
--          stand_by  2 -, 3 -, 4 member, 5 "1" warm: register only
--          renew     2 token, 3 lease ms, 4 ms for which a standby's word counts, 5 "1": the index is current
--          release   2 token
--          withdraw  2 -, 3 -, 4 member
-- RETURNS  acquire: [1, term, rev], or [0, ms left of another one's lease]
--          stand_by: [0, ms left of the lease, -1 when nobody leads]
--          renew: [rev, warm standbys]; release, withdraw: [0]
-- ERRORS   FENCED (renew); SCHEMA; POLICY (acquire), when Redis may evict keys
-- COST     O(standbys)
--
-- include: core

local P = core.prefix
local verb, token, lease, member = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local FORGET_MS = 60000

local leader = redis.call('GET', P .. 'leader')
-- The lease must work when memory is out.
core.needs_no_memory()

local function rev()
  return tonumber(redis.call('GET', P .. 'rev') or 0)
end

-- Calls fn(member, age in ms, warm) for each standby.
local function standbys(now, fn)
  local all = redis.call('HGETALL', P .. 'standbys')
  for i = 1, #all, 2 do
    local at, warm = string.match(all[i + 1], '^(%d+):(%d)$')
    fn(all[i], at and now - at or FORGET_MS + 1, warm == '1')
  end
end

local function register()
  local now = core.now()
  standbys(now, function(name, age)
    if age > FORGET_MS then
      redis.call('HDEL', P .. 'standbys', name)
    end
  end)
  redis.call('HSET', P .. 'standbys', member, core.int(now) .. ':' .. ARGV[5])
  return { 0, leader and redis.call('PTTL', P .. 'leader') or -1 }
end

local function acquire()
  local schema = redis.call('HGET', P .. 'meta', 'schema')
  if schema and schema ~= core.schema then
    return core.wrong_schema(schema)
  elseif leader and leader ~= token then
    return register()
  elseif not leader then
    local policy = core.policy()
    if policy ~= '' and policy ~= 'noeviction' then
      return core.refuse('POLICY', policy)
    end
    redis.call('SET', P .. 'leader', token, 'PX', lease)
    redis.call('INCR', P .. 'term')
    redis.call('HDEL', P .. 'standbys', member)
    redis.call('HSET', P .. 'meta', 'schema', core.schema)
  end
  return { 1, tonumber(redis.call('GET', P .. 'term')), rev() }
end

local function renew()
  local refused = core.fence(token)
  if refused then
    return refused
  end
  local now, warm_ones = core.now(), 0
  redis.call('PEXPIRE', P .. 'leader', lease)
  if ARGV[5] == '1' then
    redis.call('HSET', P .. 'meta', 'confirmed', core.int(now))
  end
  standbys(now, function(_, age, warm)
    if warm and age <= tonumber(member) then
      warm_ones = warm_ones + 1
    end
  end)
  return { rev(), warm_ones }
end

if verb == 'acquire' then
  return acquire()
elseif verb == 'stand_by' then
  return register()
elseif verb == 'renew' then
  return renew()
elseif verb == 'release' then
  if leader == token then
    redis.call('DEL', P .. 'leader')
  end
else
  redis.call('HDEL', P .. 'standbys', member)
end
return { 0 }
