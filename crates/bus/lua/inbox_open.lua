-- Makes an instance's inbox and its consumer group, unless they are there. What already lies in it is kept, and
-- is given to the group from the first entry on.
--
-- KEYS[1]  the stream
-- KEYS[2]  the mark that it was closed
-- ARGV[1]  the group
-- ARGV[2]  how long the stream stays without a use, in milliseconds
-- Answer   1: it is open. 0: it was closed, and stays so.
if redis.call('EXISTS', KEYS[2]) == 1 then
  return 0
end
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then
  return made
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
