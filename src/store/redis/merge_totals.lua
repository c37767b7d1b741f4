-- Merges the totals of an earlier process into the ledger of a key's day.
--
-- Invariant: no number is lowered, so a journal that is older than what Redis holds changes nothing, and merging twice
-- does no harm.
--
-- KEYS[1]  <prefix>:e:{id}:<date>  hash: <producer>|<endpoint> -> requests charged refunded refused_tier refused_quota
-- ARGV[1]  the field
-- ARGV[2]  its value as the journal has it
-- ARGV[3]  when the ledger goes (Unix seconds)
local held = {}
for number in string.gmatch(redis.call('HGET', KEYS[1], ARGV[1]) or '', '%d+') do
  held[#held + 1] = number
end
local merged = {}
for number in string.gmatch(ARGV[2], '%d+') do
  local other = held[#merged + 1] or '0'
  merged[#merged + 1] = tonumber(other) > tonumber(number) and other or number
end
redis.call('HSET', KEYS[1], ARGV[1], table.concat(merged, ' '))
redis.call('EXPIREAT', KEYS[1], ARGV[3])
return 1
