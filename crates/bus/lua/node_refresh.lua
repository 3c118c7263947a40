-- A heartbeat: the record lives on, and its version rises if there is anything to see.
--
-- ARGV[1]  the connection's epoch
-- ARGV[2]  how much the node may run at once
-- ARGV[3]  its state
-- ARGV[4]  its document
-- ARGV[5]  how long the record lives, in milliseconds
-- ARGV[6]  until when it vouches for the slots, in microseconds; empty if they are lent to its holder
-- ARGV[7]  when this was said, in microseconds
-- ARGV[8]  the number of this word of the connection
-- ARGV[9]  the number of its newest word that was answered
-- ARGV[10] 'gone' or 'taken': which slots follow
-- ARGV[11…] the slots of what the node runs no more; or of all that was sent to it
-- Answer   {the record's version; or -1: connect anew; or -2: a newer connection has taken over, the time in
--           microseconds}
local refused = refusal(ARGV[1])
if refused < 0 then
  return { refused, now }
end
local before = redis.call('HMGET', RECORD, 'version', 'told', 'capacity', 'state', 'document', 'word')
local version = tonumber(before[1])
if tonumber(ARGV[8]) < tonumber(before[6] or 0) then
  return { version, now }
end
if tonumber(before[6] or 0) < tonumber(ARGV[9]) then
  -- Redis has come back with what it had before that word, and may lack slots as well: the record is as good as lost, and
  -- goes. An offline one would say that the node is gone, and lanes of other instances would take back what it runs.
  redis.call('DEL', RECORD, SLOTS, RESERVED)
  return { -1, now }
end
prune(ARGV[5])
if ARGV[10] == 'taken' then
  recount(11)
else
  for i = 11, #ARGV do
    free(ARGV[i])
  end
end
local used = redis.call('HLEN', SLOTS)
if tonumber(before[2]) ~= used or before[3] ~= ARGV[2] or before[4] ~= ARGV[3] or before[5] ~= ARGV[4] then
  version = next_version()
  redis.call('HSET', RECORD, 'version', text(version), 'told', used,
    'capacity', ARGV[2], 'state', ARGV[3], 'document', ARGV[4])
end
vouch(ARGV[6], ARGV[5])
redis.call('HSET', RECORD, 'word', ARGV[8])
if ARGV[6] ~= '' then
  redis.call('HDEL', RECORD, 'listed')
elseif ARGV[10] == 'taken' then
  redis.call('HSET', RECORD, 'listed', ARGV[7])
end
redis.call('PEXPIRE', RECORD, ARGV[5])
outlive()
return { version, now }
