-- One bounded step of clearing the bits of retired slots. The caller keeps the cursor. Bits go before the
-- set's members, and a slot is free only when its set is gone: an error, a lost cursor or a failover in between
-- leaves work to do again, never a slot whose bits are still somewhere.
--
-- KEYS[1]  the pool's key prefix
-- ARGV     1 the leader's token
--          2 the tier, 3 the slot, 4 the cursor of the last step ("", "", "0" at first)
--          5 about how many blocks to clear
-- RETURNS  [rev, tier, slot, cursor, cleared, freed, slots still retired]
-- ERRORS   FENCED
-- COST     about 2 us a block
--
-- include: core
-- include: bits

local P = core.prefix
local tier, slot, cursor = ARGV[2], ARGV[3], ARGV[4]

local refused = core.fence(ARGV[1])
if refused then
  return refused
end

local function pending()
  local n = 0
  for _, name in ipairs(core.tiers) do
    n = n + redis.call('SCARD', P .. 'retired:' .. name)
  end
  return n
end

if tier == '' or redis.call('SISMEMBER', P .. 'retired:' .. tier, slot) == 0 then
  slot = false
  for _, name in ipairs(core.tiers) do
    slot = slot or redis.call('SRANDMEMBER', P .. 'retired:' .. name)
    tier = name
    if slot then
      break
    end
  end
  cursor = '0'
end
if not slot then
  return { tonumber(redis.call('GET', P .. 'rev') or 0), '', '', '0', 0, 0, 0 }
end

core.needs_no_memory()
local aside = P .. 'aside:' .. tier .. ':' .. slot
local page = redis.call('SSCAN', aside, cursor, 'COUNT', ARGV[5])
local cleared = bits.remove(tier, aside, tonumber(slot), table.concat(page[2]))
local freed = 0
if redis.call('EXISTS', aside) == 0 then
  redis.call('SREM', P .. 'retired:' .. tier, slot)
  redis.call('ZADD', P .. 'free:' .. tier, slot, slot)
  freed = 1
end
local rev = core.moved(core.now())
return { rev, tier, slot, page[1], cleared, freed, pending() }
