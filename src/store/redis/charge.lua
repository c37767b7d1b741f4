-- The charge: one round trip that merges the totals of producers' accounts, then grants within each account's limit.
--
-- Invariant: t = sum of all g<producer> minus sum of all r<producer>. A grant never raises t above the limit of its call. Merging
-- takes the larger number, so a call that is repeated, late or out of order never lowers a total of a later one. Accounts are
-- independent: the reply for one, and its stored values, are the same in a call of its own. A hash of counts has one t, and the
-- boundaries in its name never change. Nothing expires, because the clock of this server may leap: gateways drop days whose
-- retention is over.
--
-- Of each account, two keys:
-- KEYS[1]  <prefix>:k:{id}         hash: ver (version of the record), rec (the record, packed), l<date> (that day has fields a<second>)
-- KEYS[2]  <prefix>:q:{id}:<date>  hash: t<s>-<e> (units used; s and e are the day's first second and the next day's),
--                                  g<producer> (units granted to it), r<producer> (units it refunded),
--                                  a<second> (units in t that were merged after the day was closed, by the time of the merge in
--                                  Unix seconds, rounded down to 900)
-- KEYS[3] begins the second account, and so on. One argument, whose numbers are little-endian doubles (exact up to 2^53):
-- ARGV[1]  window, then the accounts in their order, each as
--            s, e     the day's first second and the next day's (Unix seconds); only of the first account, and of one after next = 1
--            ack      units the producer consumed so far
--            rack     units the producer refunded so far
--            want     units requested; 0 only merges
--            cost     units of each charge in want, which is a multiple of it: fewer than want are granted for whole charges only
--            limit    units that all producers together may use (tier plus grants); stated by the caller and never stored
--            ver      version of the record that the waiting requests were checked against
--            pid      producer, unique by process and account, preceded by its length (one byte)
--            rec      that record, to replace a lost or older one, preceded by its length (four bytes); 0 replaces nothing. A
--                     revoked record is replaced by a revoked one only
--            next     one byte: 0 if the next account is of the same day; 1 if s and e of its day follow
--          window: how long after e the day is closed (seconds)
--
-- Reply: one string, now and then the reply for each account in their order
--   now      the store's time (Unix seconds; a double, as the other numbers without a size)
--   code     one byte: 0 granted; 1 too few units left (grant may be part of want); 3 the store's record is newer, or revoked (it is in rec);
--            4 now is outside [s, e); 5 the store has the day with other boundaries. Codes 3, 4 and 5 grant nothing new.
--   grant    every unit granted to the producer and not acknowledged by this call, whatever the code
--   t        units used, including grant
--   ver      version of the record in the store, -1 without one
--   rec      the record in the store with code 3, else empty; preceded by its length (four bytes)
local call, format, pack, unpack = redis.call, string.format, struct.pack, struct.unpack
local function revoked(rec) return rec and string.find(rec, '"state":"revoked"', 1, true) end
local now = call('TIME')[1] + 0
local packed, next_day = ARGV[1], 1
local window, at = unpack('<d', packed)
local replies, s, e, used, open = { pack('<d', now) }, nil, nil, nil, nil

for i = 1, #KEYS, 2 do
  if next_day == 1 then
    s, e, at = unpack('<dd', packed, at)
    used, open = format('t%d-%d', s, e), now >= s and now < e
  end
  local record, counts = KEYS[i], KEYS[i + 1]
  local ack, rack, want, cost, limit, ver, pid, rec
  ack, rack, want, cost, limit, ver, pid, rec, next_day, at = unpack('<ddddddBc0I4c0B', packed, at)

  local stored, refused = (call('HGET', record, 'ver') or -1) + 0, false
  if stored < ver and rec ~= '' then
    -- Versions are times: after a leap of the clock and a loss of data, a revocation may have an earlier one than a change before it.
    refused = not revoked(rec) and revoked(call('HGET', record, 'rec'))
    if not refused then
      call('HSET', record, 'ver', format('%d', ver), 'rec', rec)
      stored = ver
    end
  end

  local granted = 'g' .. pid
  local held = call('HMGET', counts, used, granted)
  local field, t = used, held[1]
  if not t then
    -- The first units of the day, or a day with other boundaries.
    for _, name in ipairs(call('HKEYS', counts)) do
      if string.sub(name, 1, 1) == 't' then field, t = name, call('HGET', counts, name) end
    end
  end
  t = (t or 0) + 0
  local g, returned = (held[2] or 0) + 0, 0
  local t0, g0 = t, g
  if g < ack then t, g = t + ack - g, ack end
  -- The stored refunds are read only if the call states some: they are never lowered.
  if rack > 0 then
    local r = (call('HGET', counts, 'r' .. pid) or 0) + 0
    if r < rack then t, returned = t - (rack - r), rack end
  end

  local late, grant, code, newer = t - t0, g - ack, 0, ''
  if stored > ver or refused then
    code, newer = 3, call('HGET', record, 'rec') or ''
  elseif field ~= used then
    code = 5
  elseif want > 0 and not open then
    code = 4
  elseif want > grant then
    local need, left = want - grant, math.max(0, limit - t)
    if need > left then need, code = math.max(0, left - (grant + left) % cost), 1 end
    t, g, grant = t + need, g + need, grant + need
  end

  if g ~= g0 then call('HSET', counts, field, format('%d', t), granted, format('%d', g)) end
  if returned > 0 then call('HSET', counts, field, format('%d', t), 'r' .. pid, format('%d', returned)) end
  if late ~= 0 and now >= e + window then
    call('HINCRBY', counts, 'a' .. format('%d', now - now % 900), format('%d', late))
    call('HSET', record, 'l' .. string.sub(counts, -10), 1)
  end
  replies[#replies + 1] = pack('<BdddI4', code, grant, t, stored, #newer) .. newer
end
return table.concat(replies)
