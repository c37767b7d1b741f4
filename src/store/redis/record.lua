-- Writes the record of a key and the audit entry of its change, if the stored version is the expected one.
--
-- Invariants: ver is the version inside rec, and only rises; of two writers that expect the same version one succeeds; a
-- record is written together with its entry; no entry is replaced or removed.
--
-- KEYS[1]  <prefix>:k:{id}  hash: ver (version of the record), rec (the record, packed), see charge.lua
-- KEYS[2]  <prefix>:a:{id}  hash: version of the record that a change made -> its entry in the audit trail (JSON)
-- ARGV[1]  expected version; 0: there must be no record; -1: any older one or none (to repair a store that lost writes), but a
--          revoked record is replaced by a revoked one only: versions are times, and clocks leap
-- ARGV[2]  ver: the new version
-- ARGV[3]  rec: the new record
-- ARGV[4]  the entry of the new record
-- ARGV[5]  the entry of the expected record, in case the store lost it with the rest of its memory; '' if none is expected
--
-- Reply: 1 written; 0 not written, another version is stored; -1 not written, there is no record
local stored = tonumber(redis.call('HGET', KEYS[1], 'ver'))
local expected, ver = tonumber(ARGV[1]), tonumber(ARGV[2])
if expected > 0 and not stored then return -1 end
if expected > 0 and stored ~= expected then return 0 end
if expected == 0 and stored then return 0 end
if stored and stored >= ver then return 0 end
local function revoked(rec) return rec and string.find(rec, '"state":"revoked"', 1, true) end
if expected < 0 and not revoked(ARGV[3]) and revoked(redis.call('HGET', KEYS[1], 'rec')) then return 0 end
if ARGV[5] ~= '' then redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[5]) end
redis.call('HSETNX', KEYS[2], ARGV[2], ARGV[4])
redis.call('HSET', KEYS[1], 'ver', ARGV[2], 'rec', ARGV[3])
return 1
