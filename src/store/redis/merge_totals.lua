-- Merges the totals of an earlier process into the ledger of a key's day.
--
-- Invariant: no number is lowered, so a journal that is older than Redis's values changes nothing, and merging twice
-- does no harm.
--
-- KEYS[1]  <prefix>:e:{id}:<date>  hash: <producer>|<endpoint> -> numbers and the tier's name, with spaces between
-- ARGV[1]  the field
-- ARGV[2]  its value in the journal; a field is of one process, so both have the same numbers and the same tier
--
-- Reply: 1
local held = {}
for word in string.gmatch(redis.call('HGET', KEYS[1], ARGV[1]) or '', '%S+') do
  held[#held + 1] = word
end
local merged = {}
for word in string.gmatch(ARGV[2], '%S+') do
  local number, other = tonumber(word), tonumber(held[#merged + 1] or '')
  merged[#merged + 1] = (number and other and other > number) and held[#merged + 1] or word
end
redis.call('HSET', KEYS[1], ARGV[1], table.concat(merged, ' '))
return 1
