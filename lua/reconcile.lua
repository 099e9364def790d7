-- Change the blocks of one holder that has no event stream (Mooncake memory), or drop the holder.
-- The generation is compared and renewed by every call, so a copy that arrives late is refused; it outlives
-- a dropped holder by ten minutes for the same reason.
--
-- KEYS[1]  the pool's key prefix
-- ARGV     1 the leader's token
--          2 a fresh nonce for slots:version
--          3 the holder
--          4 its generation as the caller knows it ("" for a holder that never was)
--          5 the next generation, fresh
--          6 blocks to add, packed   7 blocks to remove, packed (done first)   8 "1" to drop the holder
-- RETURNS  rev
-- ERRORS   FENCED; LIFE; OOM (only with blocks to add), then nothing was changed
-- COST     2 us an added block, 1.5 us a removed one; drop O(1)
--
-- include: core
-- include: slots
-- include: bits

local P = core.prefix
local nonce, holder, generation = ARGV[2], ARGV[3], ARGV[5]
local tier = string.sub(holder, 1, 2)
local generations, ended = P .. 'gen:' .. tier, P .. 'ended:' .. holder
local REMEMBER_MS = 600000

local refused = core.fence(ARGV[1])
if refused then
  return refused
end
local current = redis.call('HGET', generations, holder) or redis.call('GET', ended) or ''
if current ~= ARGV[4] then
  return core.refuse('LIFE', holder .. ' is in generation ' .. current)
end
if ARGV[6] == '' then
  core.needs_no_memory()
end
local rev = core.moved(core.now())
if ARGV[8] == '1' then
  slots.retire(tier, holder, nonce)
  redis.call('HDEL', generations, holder)
  redis.call('SET', ended, generation, 'PX', REMEMBER_MS)
  return rev
end
local slot = slots.of(tier, holder)
if slot and ARGV[7] ~= '' then
  bits.remove(tier, P .. 'holder:' .. holder, slot, ARGV[7])
end
if ARGV[6] ~= '' then
  slot = slot or slots.assign(tier, holder, nonce)
  bits.store(tier, holder, slot, ARGV[6])
end
redis.call('HSET', generations, holder, generation)
return rev
