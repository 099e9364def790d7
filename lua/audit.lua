-- Check a page of the index against its invariants, at one instant, so that writes meanwhile raise no false
-- alarm. Read-only.
--
-- KEYS[1]  the pool's key prefix
-- ARGV     "slots"                                       slots, free and retired are 0..n-1, each once
--          "blocks", tier, packed blocks                 each bit has an owner whose set knows the block
--          "set", tier, slot, owner, packed blocks       each member has its bit; owner is a holder, or ""
--                                                        for the set aside of a retired slot
--          "keys", name, ...                             sets (names without the prefix) have an owner
-- RETURNS  a list of findings, in words
-- ERRORS   none
-- COST     1 us a bit; keep pages at some hundred blocks
--
-- include: core

local P = core.prefix
local WIDTH, RUN = 16, 1000
local findings = {}

local function report(text)
  findings[#findings + 1] = text
end

-- slot -> {name for people, key of its set}
local function owners(tier)
  local by_slot = {}
  local all = redis.call('HGETALL', P .. 'slots:' .. tier)
  for i = 1, #all, 2 do
    by_slot[tonumber(all[i + 1])] = { all[i], P .. 'holder:' .. all[i] }
  end
  for _, slot in ipairs(redis.call('SMEMBERS', P .. 'retired:' .. tier)) do
    by_slot[tonumber(slot)] = { 'retired slot ' .. slot, P .. 'aside:' .. tier .. ':' .. slot }
  end
  return by_slot
end

local function split(packed)
  local list = {}
  for i = 1, #packed, WIDTH do
    list[#list + 1] = string.sub(packed, i, i + WIDTH - 1)
  end
  return list
end

local function each_bit(map, fn)
  for at = 1, #map do
    local value = string.byte(map, at)
    for b = 0, 7 do
      if value % 2 == 1 then
        fn((at - 1) * 8 + b)
      end
      value = math.floor(value / 2)
    end
  end
end

local function check_slots()
  for _, tier in ipairs(core.tiers) do
    local seen, n = {}, 0
    local function see(slot, what)
      n = n + 1
      if seen[slot] then
        report(tier .. ': slot ' .. slot .. ' is ' .. what .. ' and ' .. seen[slot])
      end
      seen[slot] = what
    end
    local all = redis.call('HGETALL', P .. 'slots:' .. tier)
    for i = 1, #all, 2 do
      see(all[i + 1], 'held by ' .. all[i])
    end
    for _, slot in ipairs(redis.call('ZRANGE', P .. 'free:' .. tier, 0, -1)) do
      see(slot, 'free')
    end
    for _, slot in ipairs(redis.call('SMEMBERS', P .. 'retired:' .. tier)) do
      see(slot, 'retired')
      if redis.call('EXISTS', P .. 'aside:' .. tier .. ':' .. slot) == 0 then
        report(tier .. ': retired slot ' .. slot .. ' has no set aside')
      end
    end
    for slot = 0, n - 1 do
      if not seen[tostring(slot)] then
        report(tier .. ': slot ' .. slot .. ' is neither held, free nor retired')
      end
    end
    if n > 0 and redis.call('EXISTS', P .. 'slots:version') == 0 then
      report(tier .. ': has slots but slots:version is missing')
    end
  end
end

local function check_blocks(tier, list)
  local by_slot, held = owners(tier), {}
  local maps = redis.call('HMGET', P .. 'blocks:' .. tier, unpack(list))
  for i, block in ipairs(list) do
    local map = maps[i]
    if map and (map == '' or string.byte(map, #map) == 0) then
      report(tier .. ': ' .. block .. (map == '' and ' has an empty field' or ' has a bitmap with zeros at its end'))
    end
    each_bit(map or '', function(slot)
      if by_slot[slot] then
        held[slot] = held[slot] or {}
        table.insert(held[slot], block)
      else
        report(tier .. ': ' .. block .. ' carries the bit of slot ' .. slot .. ', which nobody has')
      end
    end)
  end
  for slot, blocks in pairs(held) do
    local name, key = unpack(by_slot[slot])
    for i, known in ipairs(redis.call('SMISMEMBER', key, unpack(blocks))) do
      if known == 0 then
        report(tier .. ': ' .. blocks[i] .. ' carries the bit of ' .. name .. ', whose set does not know it')
      end
    end
  end
end

local function check_set(tier, slot, owner, list)
  if owner ~= '' and redis.call('HGET', P .. 'slots:' .. tier, owner) ~= slot then
    return
  end
  local key = owner ~= '' and P .. 'holder:' .. owner or P .. 'aside:' .. tier .. ':' .. slot
  local members = redis.call('SMISMEMBER', key, unpack(list))
  local maps = redis.call('HMGET', P .. 'blocks:' .. tier, unpack(list))
  local at, unit = math.floor(slot / 8) + 1, 2 ^ (slot % 8)
  for i, block in ipairs(list) do
    local value = maps[i] and string.byte(maps[i], at) or 0
    if members[i] == 1 and value % (unit * 2) < unit then
      report(tier .. ': ' .. block .. ' is in the set of ' .. (owner ~= '' and owner or 'retired slot ' .. slot)
        .. ' without its bit')
    end
  end
end

local function check_keys(names)
  for _, name in ipairs(names) do
    local holder = string.match(name, '^holder:(.+)$')
    local tier, slot = string.match(name, '^aside:(%w+):(%d+)$')
    local owned = holder and redis.call('HEXISTS', P .. 'slots:' .. string.sub(holder, 1, 2), holder)
      or tier and redis.call('SISMEMBER', P .. 'retired:' .. tier, slot)
    if owned ~= 1 and redis.call('EXISTS', P .. name) == 1 then
      report('key ' .. name .. ' belongs to nobody')
    end
  end
end

local packed = ARGV[#ARGV]
if ARGV[1] == 'slots' then
  check_slots()
elseif ARGV[1] == 'keys' then
  check_keys({ unpack(ARGV, 2) })
elseif #packed > RUN * WIDTH then
  return core.refuse('ERR', 'a page has at most ' .. RUN .. ' blocks')
elseif ARGV[1] == 'blocks' then
  check_blocks(ARGV[2], split(packed))
else
  check_set(ARGV[2], ARGV[3], ARGV[4], split(packed))
end
return findings
