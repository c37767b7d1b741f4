-- The charge: one round trip that merges what a producer says, then grants within the limit.
--
-- Invariant: t = sum of all g<producer> minus sum of all r<producer>. A grant never lifts t above the limit of the call. Merging
-- takes the larger number, so a call that is repeated, late or out of order changes nothing that a later one said.
--
-- KEYS[1]  <prefix>:k:{id}         hash: ver (version of the record), rec (the record, packed)
-- KEYS[2]  <prefix>:q:{id}:<date>  hash: t (units used), s and e (the day's first second and the next day's),
--                                  g<producer> (units granted to it), r<producer> (units it gave back),
--                                  a<second> (units in t that were merged after the day was closed, by when they came,
--                                  Unix seconds rounded down to 900)
-- ARGV[1]  producer, unique by process and account
-- ARGV[2]  ack: units the producer consumed so far
-- ARGV[3]  rack: units the producer gave back so far
-- ARGV[4]  want: units asked for; 0 only merges
-- ARGV[5]  limit: units that all producers together may use (tier plus grants); it is the caller's and never stored
-- ARGV[6]  ver: version of the record that the waiting requests were checked against
-- ARGV[7]  rec: that record, to mend a lost or older one; '' mends nothing
-- ARGV[8]  s: the day's first second (Unix seconds)
-- ARGV[9]  e: the next day's first second (Unix seconds)
-- ARGV[10] when the counts go (Unix seconds)
-- ARGV[11] how long after e the day is closed (seconds)
--
-- Reply {code, grant, t, ver, now, rec}
--   code   0 granted; 1 not enough left (grant may be part of want); 3 the store's record is newer (rec holds it);
--          4 now is outside [s, e); 5 the store knows the day by other boundaries. Codes 3, 4 and 5 grant nothing new.
--   grant  every unit granted to the producer and not acknowledged by this call, on every code
--   t      units used, with grant
--   ver    version of the record in the store, -1 without one
--   now    the store's time (Unix seconds)
local now = tonumber(redis.call('TIME')[1])
local pid, ack, rack, want = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local limit, ver, s, e = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8]), tonumber(ARGV[9])
local stored = tonumber(redis.call('HGET', KEYS[1], 'ver')) or -1
if stored < ver and ARGV[7] ~= '' then
  redis.call('HSET', KEYS[1], 'ver', ARGV[6], 'rec', ARGV[7])
  stored = ver
end
local h = redis.call('HMGET', KEYS[2], 't', 'g' .. pid, 'r' .. pid, 's', 'e')
local t, g, r = tonumber(h[1]) or 0, tonumber(h[2]) or 0, tonumber(h[3]) or 0
local t0, g0, r0 = t, g, r
if g < ack then t = t + ack - g; g = ack end
if r < rack then t = t - (rack - r); r = rack end
local late = t - t0
local grant, code, rec = g - ack, 0, ''
if stored > ver then
  code = 3
  rec = redis.call('HGET', KEYS[1], 'rec')
elseif h[4] and (tonumber(h[4]) ~= s or tonumber(h[5]) ~= e) then
  code = 5
elseif want > 0 and (now < s or now >= e) then
  code = 4
elseif want > grant then
  local need = math.max(0, math.min(want - grant, limit - t))
  t = t + need
  g = g + need
  grant = grant + need
  if grant < want then code = 1 end
end
if t ~= t0 or g ~= g0 or r ~= r0 then
  if h[4] then
    redis.call('HSET', KEYS[2], 't', t, 'g' .. pid, g)
  else
    redis.call('HSET', KEYS[2], 't', t, 'g' .. pid, g, 's', s, 'e', e)
    redis.call('EXPIREAT', KEYS[2], ARGV[10])
  end
  if r > 0 then redis.call('HSET', KEYS[2], 'r' .. pid, r) end
  if late ~= 0 and now >= e + tonumber(ARGV[11]) then
    redis.call('HINCRBY', KEYS[2], 'a' .. string.format('%d', now - now % 900), late)
  end
end
return {code, grant, t, stored, now, rec}
