-- A heartbeat: the record lives on, and its version rises if there is anything to see.
--
-- ARGV[1]  the connection's epoch
-- ARGV[2]  how much the node may run at once
-- ARGV[3]  its state
-- ARGV[4]  its document
-- ARGV[5]  how long the record lives, in milliseconds
-- ARGV[6…] the slots of what the node runs no more
-- Answer   the record's version; -1: connect anew; -2: a newer connection has taken over
local refused = refusal(ARGV[1])
if refused < 0 then
  return refused
end
prune()
for i = 6, #ARGV do
  free(ARGV[i])
end
local used = redis.call('HLEN', SLOTS)
local before = redis.call('HMGET', RECORD, 'version', 'told', 'capacity', 'state', 'document')
local version = tonumber(before[1])
if tonumber(before[2]) ~= used or before[3] ~= ARGV[2] or before[4] ~= ARGV[3] or before[5] ~= ARGV[4] then
  version = next_version()
  redis.call('HSET', RECORD, 'version', text(version), 'told', used,
    'capacity', ARGV[2], 'state', ARGV[3], 'document', ARGV[4])
end
redis.call('PEXPIRE', RECORD, ARGV[5])
outlive()
return version
