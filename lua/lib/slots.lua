-- Slots: the bit numbers of a tier's holders. slots + free + retired are always 0..n-1 without a hole.
-- Every change of a holder's slot renews slots:version with the caller's nonce, so that readers notice.

local P = core.prefix

local slots = {}

-- The holder's slot, or nil.
function slots.of(tier, holder)
  return tonumber(redis.call('HGET', P .. 'slots:' .. tier, holder) or nil)
end

-- Give a holder that has none the lowest free slot, else the next new one.
function slots.assign(tier, holder, nonce)
  local key = P .. 'slots:' .. tier
  local slot = redis.call('ZPOPMIN', P .. 'free:' .. tier)[1]
  if not slot then
    slot = redis.call('HLEN', key) + redis.call('SCARD', P .. 'retired:' .. tier)
  end
  redis.call('HSET', key, holder, slot)
  redis.call('SET', P .. 'slots:version', nonce)
  return tonumber(slot)
end

-- Take the slot from a holder, in O(1). Its set is kept aside until the sweeper cleared the bits;
-- an empty holder has no bits, since the set holds at least what the bitmaps show.
function slots.retire(tier, holder, nonce)
  local key = P .. 'slots:' .. tier
  local slot = redis.call('HGET', key, holder)
  if not slot then
    return
  end
  redis.call('HDEL', key, holder)
  redis.call('SET', P .. 'slots:version', nonce)
  local set = P .. 'holder:' .. holder
  if redis.call('EXISTS', set) == 1 then
    redis.call('RENAME', set, P .. 'aside:' .. tier .. ':' .. slot)
    redis.call('SADD', P .. 'retired:' .. tier, slot)
  else
    redis.call('ZADD', P .. 'free:' .. tier, slot, slot)
  end
end

-- A stream's holder of one group; group 0 has no suffix.
function slots.holder(tier, stream, group)
  if group == 0 then
    return tier .. ':' .. stream
  end
  return tier .. ':' .. stream .. ':g' .. group
end

-- The groups of a stream's `groups` field ("0,1"), as numbers.
function slots.groups(field)
  local list = {}
  for group in string.gmatch(field or '', '%d+') do
    list[#list + 1] = tonumber(group)
  end
  return list
end

-- Retire all holders of a stream in a tier.
function slots.retire_stream(tier, stream, groups, nonce)
  for _, group in ipairs(groups) do
    slots.retire(tier, slots.holder(tier, stream, group), nonce)
  end
end

return slots
