-- What every script needs: the key prefix, error replies, Redis's clock, the fence, the write counter.

local P = KEYS[1]

local core = { prefix = P, schema = '1', tiers = { 'l1', 'l2', 'l3' } }

-- An error reply. Its first word is fixed; callers tell errors apart by it.
function core.refuse(word, text)
  return redis.error_reply(word .. ' ' .. text)
end

-- The error reply for an index that another version of this program wrote.
function core.wrong_schema(schema)
  return core.refuse('SCHEMA', 'the index has schema ' .. schema .. ', this program ' .. core.schema)
end

-- Milliseconds of Redis's own clock: for ages and leases only, never for a decision about data.
function core.now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Integers below 2^53 as text; tostring would round them.
function core.int(n)
  return string.format('%.0f', n)
end

-- The error reply for a writer whose token is not the leader's (any more), else nil.
function core.fence(token)
  if redis.call('GET', P .. 'leader') ~= token then
    return core.refuse('FENCED', 'another one leads, or the lease ran out')
  end
end

-- What Redis does when memory is out ("noeviction"), or "" when this user may not ask.
function core.policy()
  local info = redis.pcall('INFO', 'memory')
  return type(info) == 'string' and string.match(info, 'maxmemory_policy:([%w%-]+)') or ''
end

-- A write that needs no memory. Redis checks `maxmemory` at a script's first write only, so a script that
-- begins with this one may write when memory is out, and one that begins with `moved` is refused whole.
function core.needs_no_memory()
  redis.call('DEL', P .. 'nothing')
end

-- Count a write; the index is current as of now. Returns the counter.
function core.moved(now)
  local rev = redis.call('INCR', P .. 'rev')
  redis.call('HSET', P .. 'meta', 'confirmed', core.int(now))
  return rev
end

return core
