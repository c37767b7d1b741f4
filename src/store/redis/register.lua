-- Reads the register of gateways with the time of this server, which is the clock of the entries.
--
-- KEYS[1]  <prefix>:{gateways}:register  hash, see sign_in.lua
--
-- Reply: Unix milliseconds; gateway ids and entries alternately
local now = redis.call('TIME')
return { now[1] * 1000 + math.floor(now[2] / 1000), redis.call('HGETALL', KEYS[1]) }
