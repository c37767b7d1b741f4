-- The charge: one round trip that merges what producers say of their accounts, then grants within each account's limit.
--
-- Invariant: t = sum of all g<producer> minus sum of all r<producer>. A grant never lifts t above the limit of its call. Merging
-- takes the larger number, so a call that is repeated, late or out of order changes nothing that a later one said. Accounts do
-- not know each other: what is asked for one, and what becomes of it, is the same alone and beside others. Nothing expires: the
-- clock of this server may leap, and gateways drop what was kept long enough.
--
-- Of each account, two keys:
-- KEYS[1]  <prefix>:k:{id}         hash: ver (version of the record), rec (the record, packed)
-- KEYS[2]  <prefix>:q:{id}:<date>  hash: t (units used), s and e (the day's first second and the next day's),
--                                  g<producer> (units granted to it), r<producer> (units it gave back),
--                                  a<second> (units in t that were merged after the day was closed, by when they came,
--                                  Unix seconds rounded down to 900)
-- and ten arguments:
-- ARGV[1]  producer, unique by process and account
-- ARGV[2]  ack: units the producer consumed so far
-- ARGV[3]  rack: units the producer gave back so far
-- ARGV[4]  want: units asked for; 0 only merges
-- ARGV[5]  limit: units that all producers together may use (tier plus grants); it is the caller's and never stored
-- ARGV[6]  ver: version of the record that the waiting requests were checked against
-- ARGV[7]  rec: that record, to mend a lost or older one; '' mends nothing
-- ARGV[8]  s: the day's first second (Unix seconds)
-- ARGV[9]  e: the next day's first second (Unix seconds)
-- ARGV[10] how long after e the day is closed (seconds)
-- KEYS[3] and ARGV[11] begin the second account, and so on.
--
-- Reply {now, account, account, ...}
--   now      the store's time (Unix seconds)
--   account  'code grant t ver rec', the answer to each in their order:
--     code   0 granted; 1 not enough left (grant may be part of want); 3 the store's record is newer (rec holds it);
--            4 now is outside [s, e); 5 the store knows the day by other boundaries. Codes 3, 4 and 5 grant nothing new.
--     grant  every unit granted to the producer and not acknowledged by this call, on every code
--     t      units used, with grant
--     ver    version of the record in the store, -1 without one
--     rec    the record in the store with code 3, else nothing
local now = tonumber(redis.call('TIME')[1])

local function charge(record, counts, at)
  local pid, ack, rack, want = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local limit, ver, s, e = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6]), tonumber(ARGV[at + 8]), tonumber(ARGV[at + 9])
  local stored = tonumber(redis.call('HGET', record, 'ver')) or -1
  if stored < ver and ARGV[at + 7] ~= '' then
    redis.call('HSET', record, 'ver', ARGV[at + 6], 'rec', ARGV[at + 7])
    stored = ver
  end
  local h = redis.call('HMGET', counts, 't', 'g' .. pid, 'r' .. pid, 's', 'e')
  local t, g, r = tonumber(h[1]) or 0, tonumber(h[2]) or 0, tonumber(h[3]) or 0
  local t0, g0, r0 = t, g, r
  if g < ack then t = t + ack - g; g = ack end
  if r < rack then t = t - (rack - r); r = rack end
  local late = t - t0
  local grant, code, rec = g - ack, 0, ''
  if stored > ver then
    code = 3
    rec = redis.call('HGET', record, 'rec')
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
      redis.call('HSET', counts, 't', t, 'g' .. pid, g)
    else
      redis.call('HSET', counts, 't', t, 'g' .. pid, g, 's', s, 'e', e)
    end
    if r > 0 then redis.call('HSET', counts, 'r' .. pid, r) end
    if late ~= 0 and now >= e + tonumber(ARGV[at + 10]) then
      redis.call('HINCRBY', counts, 'a' .. string.format('%d', now - now % 900), late)
    end
  end
  return string.format('%d %d %d %d ', code, grant, t, stored) .. rec
end

local reply = {now}
for account = 0, #KEYS / 2 - 1 do
  reply[account + 2] = charge(KEYS[2 * account + 1], KEYS[2 * account + 2], 10 * account)
end
return reply
