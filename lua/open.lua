-- Begin a stream's new life, or end the stream. Both compare the life that the caller believes in, and a life
-- that ended stays refused for ten minutes: a copy of this call that arrives late must not revive a stream.
--
-- KEYS[1]  the pool's key prefix
-- ARGV     1 the leader's token
--          2 a fresh nonce for slots:version
--          3 "open" or "end"
--          4 the stream, "<ip>:<rank>"
--     end: 5 its life
--    open: 5 the life it is believed to be in ("" when there is no such stream)
--          6 the new life   7 incarnation   8 next   9 stamp, 8 bytes   10 state   11 "1" to wipe its blocks
-- RETURNS  open: [rev, now in ms, the stream's hash as a flat list]; end: [rev]
-- ERRORS   FENCED; LIFE
-- COST     O(holders of the stream), not of blocks
--
-- include: core
-- include: slots

local P = core.prefix
local nonce, verb, name = ARGV[2], ARGV[3], ARGV[4]
local REMEMBER_MS = 600000

local refused = core.fence(ARGV[1])
if refused then
  return refused
end
local now = core.now()
local key, ended = P .. 'stream:' .. name, P .. 'ended:' .. name
local life = redis.call('HGET', key, 'life')

local function rev()
  return tonumber(redis.call('GET', P .. 'rev') or 0)
end

local function wipe()
  local groups = slots.groups(redis.call('HGET', key, 'groups'))
  for _, tier in ipairs({ 'l1', 'l2' }) do
    slots.retire_stream(tier, name, groups, nonce)
  end
end

if verb == 'end' then
  if not life then
    return { rev() }
  elseif life ~= ARGV[5] then
    return core.refuse('LIFE', name .. ' is in life ' .. life)
  end
  core.needs_no_memory()
  wipe()
  redis.call('DEL', key)
  redis.call('SREM', P .. 'streams', name)
  redis.call('SET', ended, life, 'PX', REMEMBER_MS)
  return { core.moved(now) }
end

local expected, new = ARGV[5], ARGV[6]
if life == new then
  return { rev(), core.int(now), redis.call('HGETALL', key) }
elseif (life or '') ~= expected then
  return core.refuse('LIFE', name .. ' is in life ' .. (life or 'none'))
elseif redis.call('GET', ended) == new then
  return core.refuse('LIFE', name .. ' has ended life ' .. new)
end
core.needs_no_memory()
if life then
  if ARGV[11] == '1' then
    wipe()
    redis.call('HDEL', key, 'groups', 'cause', 'block_size')
  end
  redis.call('HINCRBY', key, 'restarts', 1)
end
redis.call('HSET', key, 'life', new, 'incarnation', ARGV[7], 'next', ARGV[8], 'ts', ARGV[9],
  'state', ARGV[10], 'since', core.int(now))
redis.call('SADD', P .. 'streams', name)
local moved = core.moved(now)
return { moved, core.int(now), redis.call('HGETALL', key) }
