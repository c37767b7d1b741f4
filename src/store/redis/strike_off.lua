-- Removes a gateway that did not sign off from the register, with an entry in the audit trail if an operator did it.
--
-- Invariant: an entry that changed since it was read remains: the gateway sent a heartbeat.
--
-- KEYS[1]  <prefix>:{gateways}:register  hash, see sign_in.lua
-- KEYS[2]  <prefix>:{gateways}:trail     hash: version -> entry of the audit trail (JSON)
-- ARGV[1]  the gateway id
-- ARGV[2]  its entry, as it was read
-- ARGV[3]  version of the audit entry; '' for none
-- ARGV[4]  the audit entry
--
-- Reply: 1 removed; 0 the entry is another or gone, or the version is taken: nothing was written
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
if ARGV[3] ~= '' and redis.call('HSETNX', KEYS[2], ARGV[3], ARGV[4]) == 0 then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
