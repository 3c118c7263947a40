-- What is known of a node. Changes nothing.
--
-- Answer   nothing, or {holder, state, document, epoch, version, capacity, slots taken, 1 if online, 1 if complete,
--          how long the record still lives, in milliseconds}
local record = redis.call('HMGET', RECORD,
  'holder', 'state', 'document', 'epoch', 'version', 'capacity', 'online', 'complete')
if not record[1] then
  return false
end
local used = redis.call('HLEN', SLOTS) - redis.call('ZCOUNT', RESERVED, '-inf', text(now))
if record[7] ~= '1' then
  used = 0
end
return { record[1], record[2], record[3], tonumber(record[4]), tonumber(record[5]), tonumber(record[6]), used,
  tonumber(record[7]), tonumber(record[8]), redis.call('PTTL', RECORD) }
