-- Apply batches of engine events, of many streams at once. Each entry is applied whole or not at all, and an
-- entry that is refused leaves the others alone.
--
-- KEYS[1]  the pool's key prefix, "kvi:{<pool>}:"
-- ARGV     1 the leader's token
--          2 a fresh nonce for slots:version
--          3 "1" when some entry stores blocks
--          4 msgpack: list of [stream "<ip>:<rank>", life, start, stop, stamps, ops, skip_from, sets, adds]
--            batches are start..stop-1; stamps is 16 hex digits for each (a big-endian double);
--            ops is a list of [kind, tier, group, packed blocks], kind "store", "remove" or "clear";
--            skip_from is the believed `next` when a gap is knowingly jumped, else -1;
--            sets and adds are flat lists of field, value: to set, and to add
-- RETURNS  [rev, [code, next, stamp, life], ...], codes OK, DUP, GAP, LIFE, NONE
-- ERRORS   FENCED; OOM (only when ARGV[3] is "1"), then nothing was changed
-- COST     about 10 us an entry, 2 us a stored block, 1.5 us a removed one; "clear" O(1)
--
-- include: core
-- include: slots
-- include: bits

local P = core.prefix
local nonce = ARGV[2]

local refused = core.fence(ARGV[1])
if refused then
  return refused
end
local now = core.now()
if ARGV[3] ~= '1' then
  core.needs_no_memory()
end
local rev = core.moved(now)

local NO_STAMP = string.rep('\0', 8)
local FIELDS = { 'life', 'next', 'ts', 'groups', 'batches', 'stored', 'removed', 'cleared', 'gaps', 'missing' }

local function unhex(text)
  return (string.gsub(text, '..', function(pair)
    return string.char(tonumber(pair, 16))
  end))
end

local function read_stream(name)
  local values = redis.call('HMGET', P .. 'stream:' .. name, unpack(FIELDS))
  local stream = { name = name, slots = { l1 = {}, l2 = {} }, changed = {} }
  for i = 1, #FIELDS do
    stream[FIELDS[i]] = values[i]
  end
  stream.next = tonumber(stream.next or 0)
  stream.ts = stream.ts or NO_STAMP
  stream.groups = slots.groups(stream.groups)
  return stream
end

local function count(stream, field, by)
  if by > 0 then
    stream[field] = (tonumber(stream[field] or 0)) + by
    stream.changed[field] = core.int(stream[field])
  end
end

-- Give every group of the stream its slot in the tier: a rank counts with its worst group, so a group
-- that holds nothing yet must be seen to hold nothing.
local function take_slots(stream, tier)
  for _, group in ipairs(stream.groups) do
    local holder = slots.holder(tier, stream.name, group)
    stream.slots[tier][group] = slots.of(tier, holder) or slots.assign(tier, holder, nonce)
  end
end

local function learn(stream, group)
  for _, known in ipairs(stream.groups) do
    if known == group then
      return
    end
  end
  local first = stream.groups[1]
  table.insert(stream.groups, group)
  stream.changed.groups = table.concat(stream.groups, ',')
  for _, tier in ipairs({ 'l1', 'l2' }) do
    if first and slots.of(tier, slots.holder(tier, stream.name, first)) then
      take_slots(stream, tier)
    end
  end
end

local function perform(stream, kind, tier, group, packed)
  local holder = slots.holder(tier, stream.name, group)
  if kind == 'store' then
    learn(stream, group)
    if not stream.slots[tier][group] then
      take_slots(stream, tier)
    end
    count(stream, 'stored', bits.store(tier, holder, stream.slots[tier][group], packed))
  elseif kind == 'remove' then
    local slot = stream.slots[tier][group] or slots.of(tier, holder)
    if slot then
      count(stream, 'removed', bits.remove(tier, P .. 'holder:' .. holder, slot, packed))
    end
  else
    slots.retire_stream(tier, stream.name, stream.groups, nonce)
    stream.slots[tier] = {}
    count(stream, 'cleared', 1)
  end
end

-- The code that refuses the batches, or nil. A sequence number alone proves nothing: an engine that restarted
-- counts from 0 again and may be anywhere by now, so the timestamps must fit too.
local function refusal(stream, start, stop, stamps, skip)
  if start > stream.next and skip ~= stream.next then
    return 'GAP'
  elseif stop <= stream.next and start < stop then
    local last = unhex(string.sub(stamps, -16))
    return struct.unpack('>d', last) > struct.unpack('>d', stream.ts) and 'LIFE' or 'DUP'
  elseif start < stream.next and start < stop then
    local at = (stream.next - 1 - start) * 16
    return unhex(string.sub(stamps, at + 1, at + 16)) ~= stream.ts and 'LIFE' or nil
  end
end

local function entry(name, life, start, stop, stamps, ops, skip, sets, adds)
  local stream = read_stream(name)
  if not stream.life then
    return { 'NONE', '0', NO_STAMP, '' }
  end
  local code = life ~= stream.life and 'LIFE' or nil
  if not code and start < stop then
    code = refusal(stream, start, stop, stamps, skip)
  end
  if code then
    return { code, core.int(stream.next), stream.ts, stream.life }
  end
  local changed = stream.changed
  if start < stop then
    for _, op in ipairs(ops) do
      perform(stream, op[1], op[2], op[3], op[4])
    end
    count(stream, 'batches', stop - math.max(start, stream.next))
    changed.next, changed.ts, changed.seen = core.int(stop), unhex(string.sub(stamps, -16)), core.int(now)
  end
  for i = 1, #sets, 2 do
    changed[sets[i]] = sets[i + 1]
  end
  if start > stream.next and start < stop then
    count(stream, 'gaps', 1)
    count(stream, 'missing', start - stream.next)
    changed.state = 'suspect'
  end
  local flat = {}
  for field, value in pairs(changed) do
    flat[#flat + 1] = field
    flat[#flat + 1] = value
  end
  if #flat > 0 then
    redis.call('HSET', P .. 'stream:' .. name, unpack(flat))
  end
  for i = 1, #adds, 2 do
    redis.call('HINCRBY', P .. 'stream:' .. name, adds[i], core.int(adds[i + 1]))
  end
  return { 'OK', changed.next or core.int(stream.next), changed.ts or stream.ts, stream.life }
end

local reply = { rev }
for i, e in ipairs(cmsgpack.unpack(ARGV[4])) do
  reply[i + 1] = entry(unpack(e))
end
return reply
