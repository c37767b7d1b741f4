-- Enters a gateway in the register with the time of this server, or renews its entry.
--
-- KEYS[1]  <prefix>:{gateways}:register  hash: gateway id -> '<time of its last heartbeat, Unix milliseconds> <node> <heartbeat, JSON>'
-- ARGV[1]  the gateway id
-- ARGV[2]  the node in it, without a space
-- ARGV[3]  its heartbeat
--
-- Reply: the node that had the id before, this one included; '' if there was no entry
local before = redis.call('HGET', KEYS[1], ARGV[1])
local now = redis.call('TIME')
local heard = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
redis.call('HSET', KEYS[1], ARGV[1], heard .. ' ' .. ARGV[2] .. ' ' .. ARGV[3])
return before and string.match(before, '^%d+ (%S+)') or ''
