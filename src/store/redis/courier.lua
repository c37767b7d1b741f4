-- Takes, renews or gives up the right to deliver events, and returns those that await delivery.
--
-- KEYS[1]  string: the node that delivers, until it expires
-- KEYS[2]  sorted set: the events to be delivered, by their time
-- ARGV[1]  the calling node
-- ARGV[2]  milliseconds that its right lasts; 0 gives it up and returns no events
-- ARGV[3]  the most events to return
-- ARGV[4]  the most milliseconds that a right lasts. One with more left was taken before the clock of this server was set back.
-- ARGV[5]  how many of the oldest events to skip
--
-- Reply: nil if another node delivers or the right was given up, else the events with their times, the oldest first.
local courier = redis.call('GET', KEYS[1])
if courier and courier ~= ARGV[1] and redis.call('PTTL', KEYS[1]) <= tonumber(ARGV[4]) then
  return false
end
if tonumber(ARGV[2]) == 0 then
  redis.call('DEL', KEYS[1])
  return false
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return redis.call('ZRANGE', KEYS[2], ARGV[5], ARGV[5] + ARGV[3] - 1, 'WITHSCORES')
