-- Adds the slots that only the ledger knew of: from now on all are known.
--
-- ARGV[1]  the connection's epoch
-- ARGV[2…] the slots; one that is taken already stays as it is
-- Answer   the record's version; -1: connect anew; -2: a newer connection has taken over
local refused = refusal(ARGV[1])
if refused < 0 then
  return refused
end
for i = 2, #ARGV do
  redis.call('HSETNX', SLOTS, ARGV[i], 's0')
end
local version = next_version()
redis.call('HSET', RECORD, 'complete', '1', 'version', text(version), 'told', redis.call('HLEN', SLOTS))
outlive()
return version
