-- The connection took the record too late to speak for the node, which may have another one: the record goes, and says
-- nothing of the node. Its version alone stays, for as long as the record would have lived: the next connection is to
-- be above it, whatever the clock says by then.
--
-- ARGV[1]  the connection's epoch
-- Answer   the record's version; -1: there was none; -2: a newer connection has taken over
local refused = refusal(ARGV[1])
if refused < 0 then
  return refused
end
local version, left = next_version(), redis.call('PTTL', RECORD)
redis.call('DEL', RECORD, SLOTS, RESERVED)
redis.call('HSET', RECORD, 'version', text(version))
redis.call('PEXPIRE', RECORD, left)
return version
