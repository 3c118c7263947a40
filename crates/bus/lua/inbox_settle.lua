-- Acknowledges entries and deletes them: they will not be seen again.
--
-- KEYS[1]  the stream
-- ARGV[1]  how long the stream stays without a use, in milliseconds
-- ARGV[2]  the group
-- ARGV[3…] the entries' ids
-- Answer   how many were there
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('XACK', KEYS[1], unpack(ARGV, 2))
return redis.call('XDEL', KEYS[1], unpack(ARGV, 3))
