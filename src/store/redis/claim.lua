-- Claims an event for one node and stores it for delivery, in one step.
--
-- KEYS[1]  hash: event id -> the node that claimed it
-- KEYS[2]  sorted set: the events to be delivered, by their time
-- ARGV[1]  the event's id
-- ARGV[2]  the node
-- ARGV[3]  Unix seconds after which KEYS[1] may expire
-- ARGV[4]  the event, or empty if it is not to be delivered
-- ARGV[5]  Unix milliseconds of the event
-- ARGV[6]  the most events that are kept
--
-- Reply: 1 claimed by this call; 2 the same, but the event is not kept; 3 claimed by this node before; 0 another node has it.
-- Invariant: only the call that claims an event stores it, so a repeated call stores nothing twice.
if redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2]) == 0 then
  if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then
    return 3
  end
  return 0
end
redis.call('EXPIREAT', KEYS[1], ARGV[3])
if ARGV[4] == '' then
  return 1
end
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[6]) then
  return 2
end
redis.call('ZADD', KEYS[2], 'NX', ARGV[5], ARGV[4])
return 1
