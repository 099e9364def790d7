-- How far each candidate's blocks reach into a chain: mask in, runs out. Read-only; runs on replicas too.
--
-- A candidate is a bit of the mask: its slot. Bitmaps of the chain's blocks are ANDed into the mask until no
-- candidate is alive; only the changes are returned. What a call costs hardly depends on the candidates.
--
-- KEYS[1]  the pool's key prefix
-- ARGV     1 the nonce under which the caller knows the slots; "?" asks by holder names instead
--          2 number of chains, then each chain: packed blocks
--          then for each query: tier, number of its chain (from 1), and
--            the mask (little-endian bytes, bit = slot), or with "?" msgpack: a list of holder names
-- RETURNS  [age in ms, runs of query 1, ...]; the age is that of the last write or confirmation, -1 for never.
--          Runs are a flat list of position, word, bits: at that block (from 0) those bits of that 32-bit
--          word (from 0) fell out. With "?" a query gives [slot of each name or -1, runs] instead.
-- ERRORS   SCHEMA; SLOTS: the nonce is not the current one
-- COST     0.3 us a block for as long as a candidate is alive; blocks are read in chunks of 32, 128, 512, 1024
--
-- include: core

local P = core.prefix
local byte, sub, band, bor, bxor = string.byte, string.sub, bit.band, bit.bor, bit.bxor
local WIDTH = 16
local GROW, MAX = 4, 1024

local meta = redis.call('HMGET', P .. 'meta', 'schema', 'confirmed')
local schema, confirmed = meta[1], meta[2]
if schema and schema ~= core.schema then
  return core.wrong_schema(schema)
end

local by_name = ARGV[1] == '?'
if not by_name and (redis.call('GET', P .. 'slots:version') or '') ~= ARGV[1] then
  return core.refuse('SLOTS', 'holders changed their slots')
end

-- The words of a mask that are not zero: their numbers and their bits.
local function words_of_mask(mask)
  local number, bits, n = {}, {}, 0
  for at = 1, #mask, 4 do
    local a, b, c, d = byte(mask, at, at + 3)
    local word = bor(a, (b or 0) * 256, (c or 0) * 65536, (d or 0) * 16777216)
    if word ~= 0 then
      n = n + 1
      number[n], bits[n] = (at - 1) / 4, word
    end
  end
  return number, bits
end

-- The same from holder names, and each name's slot.
local function words_of_names(tier, names)
  local found, slots, of_word = {}, {}, {}
  for first = 1, #names, MAX do
    local last = math.min(first + MAX - 1, #names)
    local page = redis.call('HMGET', P .. 'slots:' .. tier, unpack(names, first, last))
    for i = 1, last - first + 1 do
      slots[first + i - 1] = tonumber(page[i] or -1)
    end
  end
  for _, slot in ipairs(slots) do
    if slot >= 0 then
      local word = math.floor(slot / 32)
      if not of_word[word] then
        of_word[word] = 0
        found[#found + 1] = word
      end
      of_word[word] = bor(of_word[word], bit.lshift(1, slot % 32))
    end
  end
  table.sort(found)
  local bits = {}
  for i, word in ipairs(found) do
    bits[i] = of_word[word]
  end
  return found, bits, slots
end

local function runs(hash, chain, number, bits)
  local out, n, live = {}, 0, #number
  local total, done, chunk = #chain / WIDTH, 0, 32
  local last_map, last_cut
  while live > 0 and done < total do
    local size = math.min(chunk, total - done)
    local fields, at = {}, done * WIDTH
    for i = 1, size do
      fields[i] = sub(chain, at + 1, at + WIDTH)
      at = at + WIDTH
    end
    local maps = redis.call('HMGET', hash, unpack(fields))
    for i = 1, size do
      local map = maps[i]
      -- Lua keeps each distinct string once, so these comparisons are of pointers.
      if map ~= last_map then
        last_map = map
        local cut = map and sub(map, number[1] * 4 + 1, number[live] * 4 + 4)
        if cut ~= last_cut then
          last_cut = cut
          local base, kept = number[1] * 4, 0
          for w = 1, live do
            local word, was = number[w], bits[w]
            local o = word * 4 - base
            local is = 0
            if cut then
              local a, b, c, d = byte(cut, o + 1, o + 4)
              if a then
                is = band(was, a + (b or 0) * 256 + (c or 0) * 65536 + (d or 0) * 16777216)
              end
            end
            if is ~= was then
              out[n + 1], out[n + 2], out[n + 3] = done + i - 1, word, bxor(was, is)
              n = n + 3
            end
            if is ~= 0 then
              kept = kept + 1
              number[kept], bits[kept] = word, is
            end
          end
          if kept < live then
            live, last_map, last_cut = kept, nil, nil
            if live == 0 then
              return out
            end
          end
        end
      end
    end
    done = done + size
    chunk = math.min(chunk * GROW, MAX)
  end
  return out
end

local reply = { confirmed and core.now() - confirmed or -1 }
local chains = tonumber(ARGV[2])
for q = 3 + chains, #ARGV, 3 do
  local tier, chain, who = ARGV[q], ARGV[2 + ARGV[q + 1]], ARGV[q + 2]
  local hash = P .. 'blocks:' .. tier
  if by_name then
    local number, bits, slots = words_of_names(tier, cmsgpack.unpack(who))
    reply[#reply + 1] = { slots, runs(hash, chain, number, bits) }
  else
    reply[#reply + 1] = runs(hash, chain, words_of_mask(who))
  end
end
return reply
