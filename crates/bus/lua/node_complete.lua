-- Adds the slots that only the ledger knew of: from now on all are known, and vouched for.
--
-- ARGV[1]  the connection's epoch
-- ARGV[2]  until when it vouches for them, in microseconds, unless they are lent to its holder
-- ARGV[3…] the slots; one that is taken already stays as it is
-- Answer   {the record's version; or -1: connect anew; or -2: a newer connection has taken over, the time in
--           microseconds}
local refused = refusal(ARGV[1])
if refused < 0 then
  return { refused, now }
end
for i = 3, #ARGV do
  redis.call('HSETNX', SLOTS, ARGV[i], 's0')
end
local version = next_version()
redis.call('HSET', RECORD, 'complete', '1', 'version', text(version), 'told', redis.call('HLEN', SLOTS))
if not is_lent() then
  vouch(ARGV[2], redis.call('PTTL', RECORD))
end
outlive()
return { version, now }
