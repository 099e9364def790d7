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
local tier, slot, cursor, budget = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local SLOT_COST = 20
local cleared, freed = 0, 0

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

-- Stay with the slot as long as it is retired, else take any. False: none is left.
local function choose()
  if slot ~= '' and redis.call('SISMEMBER', P .. 'retired:' .. tier, slot) == 1 then
    return true
  end
  cursor = '0'
  for _, name in ipairs(core.tiers) do
    local any = redis.call('SRANDMEMBER', P .. 'retired:' .. name)
    if any then
      tier, slot = name, any
      return true
    end
  end
  tier, slot = '', ''
  return false
end

local function step()
  local aside = P .. 'aside:' .. tier .. ':' .. slot
  local page = redis.call('SSCAN', aside, cursor, 'COUNT', budget)
  cleared = cleared + bits.remove(tier, aside, tonumber(slot), table.concat(page[2]))
  cursor = page[1]
  budget = budget - SLOT_COST - #page[2]
  if redis.call('EXISTS', aside) == 0 then
    redis.call('SREM', P .. 'retired:' .. tier, slot)
    redis.call('ZADD', P .. 'free:' .. tier, slot, slot)
    freed = freed + 1
  end
end

core.needs_no_memory()
local worked = false
while budget > 0 and choose() do
  worked = true
  step()
end
local rev = worked and core.moved(core.now()) or tonumber(redis.call('GET', P .. 'rev') or 0)
return { rev, tier, slot, cursor, cleared, freed, pending() }
