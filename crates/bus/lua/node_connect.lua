-- A new connection takes a node over.
--
-- ARGV[1]  the instance that holds it
-- ARGV[2]  how much the node may run at once
-- ARGV[3]  its state
-- ARGV[4]  its document
-- ARGV[5]  how long the record lives, in milliseconds
-- ARGV[6…] the slots of what the node says that it is running
-- Answer   {the connection's epoch, which is the record's version; 1 if all slots are known}
local running = {}
for i = 6, #ARGV do
  running[ARGV[i]] = true
end

local complete = '0'
if is_online() then
  complete = redis.call('HGET', RECORD, 'complete')
  prune()
  local slots = redis.call('HGETALL', SLOTS)
  for i = 1, #slots, 2 do
    if string.sub(slots[i + 1], 1, 1) == 's' and not running[slots[i]] then
      redis.call('HDEL', SLOTS, slots[i])
    end
  end
else
  redis.call('DEL', SLOTS, RESERVED)
end
for i = 6, #ARGV do
  take(ARGV[i])
end

local epoch = next_version()
redis.call('HSET', RECORD, 'epoch', text(epoch), 'version', text(epoch), 'online', '1', 'complete', complete,
  'holder', ARGV[1], 'capacity', ARGV[2], 'state', ARGV[3], 'document', ARGV[4],
  'told', redis.call('HLEN', SLOTS))
redis.call('PEXPIRE', RECORD, ARGV[5])
outlive()
return { epoch, tonumber(complete) }
