-- A heartbeat: the record lives on, and its version rises if there is anything to see.
--
-- ARGV[1]  the connection's epoch
-- ARGV[2]  how much the node may run at once
-- ARGV[3]  its state
-- ARGV[4]  its document
-- ARGV[5]  how long the record lives, in milliseconds
-- ARGV[6]  until when it vouches for the slots, in microseconds
-- ARGV[7]  'gone' or 'taken': which slots follow
-- ARGV[8…] the slots of what the node runs no more; or of all that was sent to it
-- Answer   {the record's version; or -1: connect anew; or -2: a newer connection has taken over, the time in
--           microseconds}
local refused = refusal(ARGV[1])
if refused < 0 then
  return { refused, now }
end
prune()
if ARGV[7] == 'taken' then
  recount(8)
else
  for i = 8, #ARGV do
    free(ARGV[i])
  end
end
local used = redis.call('HLEN', SLOTS)
local before = redis.call('HMGET', RECORD, 'version', 'told', 'capacity', 'state', 'document')
local version = tonumber(before[1])
if tonumber(before[2]) ~= used or before[3] ~= ARGV[2] or before[4] ~= ARGV[3] or before[5] ~= ARGV[4] then
  version = next_version()
  redis.call('HSET', RECORD, 'version', text(version), 'told', used,
    'capacity', ARGV[2], 'state', ARGV[3], 'document', ARGV[4])
end
vouch(ARGV[6])
redis.call('PEXPIRE', RECORD, ARGV[5])
outlive()
return { version, now }
