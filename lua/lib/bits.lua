-- Bits of a slot in the bitmaps of blocks:<tier>. Slot s is bit s % 8 of byte s / 8; bytes that are zero at
-- the end are cut off, and a block without a bit has no field.
--
-- Work goes in runs of 1,000 blocks: one HMGET, HSET, SADD each (Lua's stack takes no 8,000 arguments).
-- Neighbouring blocks share few distinct bitmaps, so the new one is remembered for each old one.

local P = core.prefix
local WIDTH = 16
local RUN = 1000

local bits = {}

-- Call fn(list of blocks) for each run of a packed string.
function bits.runs(packed, fn)
  local total = #packed / WIDTH
  for first = 1, total, RUN do
    local last = math.min(first + RUN - 1, total)
    local list = {}
    for i = first, last do
      list[i - first + 1] = string.sub(packed, i * WIDTH - WIDTH + 1, i * WIDTH)
    end
    fn(list)
  end
end

-- The bitmap with the bit set, or false when it is set already.
local function with(old, byte, unit)
  old = old or ''
  local now = string.byte(old, byte) or 0
  if now % (unit * 2) >= unit then
    return false
  end
  if #old < byte then
    return old .. string.rep('\0', byte - 1 - #old) .. string.char(unit)
  end
  return string.sub(old, 1, byte - 1) .. string.char(now + unit) .. string.sub(old, byte + 1)
end

-- The bitmap with the bit clear ('' when no bit is left), or false when it is clear already.
local function without(old, byte, unit)
  local now = old and string.byte(old, byte) or 0
  if now % (unit * 2) < unit then
    return false
  end
  local new = string.sub(old, 1, byte - 1) .. string.char(now - unit) .. string.sub(old, byte + 1)
  local n = #new
  while n > 0 and string.byte(new, n) == 0 do
    n = n - 1
  end
  return string.sub(new, 1, n)
end

-- A function old bitmap -> new bitmap that computes each distinct one once.
local function memo(change, slot)
  local byte, unit = math.floor(slot / 8) + 1, 2 ^ (slot % 8)
  local known = {}
  return function(old)
    local new = known[old]
    if new == nil then
      new = change(old, byte, unit)
      known[old] = new
    end
    return new
  end
end

-- Redis keeps a hash of up to 512 short fields as a list and searches it from the front, which makes a lookup
-- in a small index several times slower. One long value, taken away again, turns it into a hash table for good.
local function make_hash_table(hash)
  redis.call('HSET', hash, 'long', string.rep(' ', 65))
end

-- Set the slot's bit in every block, after the set knows the block. Returns how many blocks were new.
function bits.store(tier, holder, slot, packed)
  local hash, set, change, count = P .. 'blocks:' .. tier, P .. 'holder:' .. holder, memo(with, slot), 0
  local small = packed ~= '' and redis.call('EXISTS', hash) == 0
  if small then
    make_hash_table(hash)
  end
  bits.runs(packed, function(list)
    local maps = redis.call('HMGET', hash, unpack(list))
    local fresh, changes, n = {}, {}, 0
    for i = 1, #list do
      local new = change(maps[i])
      if new then
        n = n + 1
        fresh[n], changes[2 * n - 1], changes[2 * n] = list[i], list[i], new
      end
    end
    if n > 0 then
      redis.call('SADD', set, unpack(fresh))
      redis.call('HSET', hash, unpack(changes))
      count = count + n
    end
  end)
  if small then
    redis.call('HDEL', hash, 'long')
  end
  return count
end

-- Clear the slot's bit in a list of at most RUN blocks. Returns how many had it.
function bits.clear(tier, list, change)
  local hash = P .. 'blocks:' .. tier
  local maps = redis.call('HMGET', hash, unpack(list))
  local changes, gone, n, g = {}, {}, 0, 0
  for i = 1, #list do
    local new = change(maps[i])
    if new == '' then
      g = g + 1
      gone[g] = list[i]
    elseif new then
      n = n + 1
      changes[2 * n - 1], changes[2 * n] = list[i], new
    end
  end
  if n > 0 then
    redis.call('HSET', hash, unpack(changes))
  end
  if g > 0 then
    redis.call('HDEL', hash, unpack(gone))
  end
  return n + g
end

-- Clear the slot's bit in every block of a packed run, then take the blocks from `set` (a full key).
function bits.remove(tier, set, slot, packed)
  local change, count = memo(without, slot), 0
  bits.runs(packed, function(list)
    count = count + bits.clear(tier, list, change)
    redis.call('SREM', set, unpack(list))
  end)
  return count
end

return bits
