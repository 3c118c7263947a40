-- The connection says that the node is gone. The record stays for a while, to say so.
--
-- ARGV[1]  the connection's epoch
-- ARGV[2]  how long the record stays, in milliseconds
-- Answer   the record's version; -1: there was none; -2: a newer connection has taken over
local refused = refusal(ARGV[1])
if refused < 0 then
  return refused
end
local version = next_version()
redis.call('HSET', RECORD, 'online', '0', 'complete', '0', 'told', '0', 'version', text(version))
redis.call('PEXPIRE', RECORD, ARGV[2])
redis.call('DEL', SLOTS, RESERVED)
return version
