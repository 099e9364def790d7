-- Sizes and leadership. Read-only.
--
-- KEYS[1]  the pool's key prefix
-- RETURNS  [now in ms, term, rev, leader's token, ms left of the lease, standbys, meta,
--           tier, blocks, free slots, retired slots, [holder, blocks, ...], next tier ...]; lists are flat
-- ERRORS   none
-- COST     2 us a holder
--
-- include: core

local P = core.prefix
local reply = {
  core.int(core.now()),
  tonumber(redis.call('GET', P .. 'term') or 0),
  tonumber(redis.call('GET', P .. 'rev') or 0),
  redis.call('GET', P .. 'leader') or '',
  redis.call('PTTL', P .. 'leader'),
  redis.call('HGETALL', P .. 'standbys'),
  redis.call('HGETALL', P .. 'meta'),
}
for _, tier in ipairs(core.tiers) do
  local holders = {}
  for _, name in ipairs(redis.call('HKEYS', P .. 'slots:' .. tier)) do
    holders[#holders + 1] = name
    holders[#holders + 1] = redis.call('SCARD', P .. 'holder:' .. name)
  end
  reply[#reply + 1] = tier
  reply[#reply + 1] = redis.call('HLEN', P .. 'blocks:' .. tier)
  reply[#reply + 1] = redis.call('ZCARD', P .. 'free:' .. tier)
  reply[#reply + 1] = redis.call('SCARD', P .. 'retired:' .. tier)
  reply[#reply + 1] = holders
end
return reply
