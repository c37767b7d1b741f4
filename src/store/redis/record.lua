-- Writes the record of a key if the stored version is the expected one.
--
-- Invariant: ver is the version inside rec, and only rises; of two writers that expect the same version one succeeds.
--
-- KEYS[1]  <prefix>:k:{id}  hash: ver (version of the record), rec (the record, packed)
-- ARGV[1]  expected version; 0: there must be no record; -1: any older one or none (to mend what a store lost)
-- ARGV[2]  ver: the new version
-- ARGV[3]  rec: the new record
--
-- Reply: 1 written; 0 not written, another version is stored; -1 not written, there is no record
local stored = tonumber(redis.call('HGET', KEYS[1], 'ver'))
local expected, ver = tonumber(ARGV[1]), tonumber(ARGV[2])
if expected > 0 and not stored then return -1 end
if expected > 0 and stored ~= expected then return 0 end
if expected == 0 and stored then return 0 end
if stored and stored >= ver then return 0 end
redis.call('HSET', KEYS[1], 'ver', ARGV[2], 'rec', ARGV[3])
return 1
