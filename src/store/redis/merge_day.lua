-- Merges the counts of producers on a key's day, from a backup or another store.
--
-- Invariants: no number is lowered, so older numbers change nothing and repeating a merge does no harm; t remains the sum of all
-- g<producer> minus the sum of all r<producer>; of two late entries of one time the one with more units, charged or
-- refunded, remains.
--
-- KEYS[1]  <prefix>:q:{id}:<date>  hash: the counts, see charge.lua
-- KEYS[2]  <prefix>:e:{id}:<date>  hash: the ledger, <producer>|<endpoint> -> numbers and the tier's name, with spaces between
-- KEYS[3]  <prefix>:k:{id}         hash: the record, see charge.lua
-- ARGV[1]  s: the day's first second (Unix seconds)
-- ARGV[2]  e: the next day's first second (Unix seconds)
-- ARGV[3]  1: write; 0: only reply what a write would do
-- ARGV[4]  how many accounts; then for each: producer, units granted, units refunded
-- then     how many sheets; then for each: field and value of KEYS[2]; a field is of one producer, so the tier is the same
-- then     how many late entries; then for each: the time of the merge (Unix seconds), units charged minus units refunded
--
-- Reply: 1 something was new; 0 nothing was; -1 the store has the day with other boundaries, nothing was written
local at = 3
local function next_argument()
  at = at + 1
  return ARGV[at]
end

local used = 't' .. ARGV[1] .. '-' .. ARGV[2]
local stored = redis.call('HGET', KEYS[1], used)
if not stored then
  for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
    if string.sub(name, 1, 1) == 't' then return -1 end
  end
end
local t, counts, sheets = tonumber(stored) or 0, {}, {}

for _ = 1, tonumber(next_argument()) do
  local producer = next_argument()
  local granted = tonumber(next_argument())
  local returned = tonumber(next_argument())
  local held = redis.call('HMGET', KEYS[1], 'g' .. producer, 'r' .. producer)
  local g, r = tonumber(held[1]) or 0, tonumber(held[2]) or 0
  if granted > g then
    t = t + granted - g
    counts[#counts + 1] = 'g' .. producer
    counts[#counts + 1] = string.format('%.0f', granted)
  end
  if returned > r then
    t = t - (returned - r)
    counts[#counts + 1] = 'r' .. producer
    counts[#counts + 1] = string.format('%.0f', returned)
  end
end

for _ = 1, tonumber(next_argument()) do
  local field = next_argument()
  local numbers = next_argument()
  local held = {}
  for word in string.gmatch(redis.call('HGET', KEYS[2], field) or '', '%S+') do
    held[#held + 1] = word
  end
  local merged, is_new = {}, #held == 0
  for word in string.gmatch(numbers, '%S+') do
    local mine = held[#merged + 1]
    local number, other = tonumber(word), tonumber(mine or '')
    if number and other and other >= number then
      merged[#merged + 1] = mine
    else
      is_new = is_new or word ~= mine
      merged[#merged + 1] = word
    end
  end
  if is_new then
    sheets[#sheets + 1] = field
    sheets[#sheets + 1] = table.concat(merged, ' ')
  end
end

local late = tonumber(next_argument())
if late > 0 and ARGV[3] == '1' then redis.call('HSET', KEYS[3], 'l' .. string.sub(KEYS[1], -10), 1) end
for _ = 1, late do
  local field = 'a' .. next_argument()
  local units = tonumber(next_argument())
  local held = tonumber(redis.call('HGET', KEYS[1], field)) or 0
  if math.abs(units) > math.abs(held) then
    counts[#counts + 1] = field
    counts[#counts + 1] = string.format('%.0f', units)
  end
end

if #counts + #sheets == 0 then return 0 end
if ARGV[3] == '0' then return 1 end
if #counts > 0 then
  redis.call('HSET', KEYS[1], used, string.format('%.0f', t))
  for field = 1, #counts, 2 do redis.call('HSET', KEYS[1], counts[field], counts[field + 1]) end
end
if #sheets > 0 then
  for field = 1, #sheets, 2 do redis.call('HSET', KEYS[2], sheets[field], sheets[field + 1]) end
end
return 1
