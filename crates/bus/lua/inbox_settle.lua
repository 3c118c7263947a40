-- Acknowledges entries and deletes them: they will not be seen again.
--
-- KEYS[1]  the stream
-- ARGV[1]  the group
-- ARGV[2…] the entries' ids
-- Answer   how many were there
redis.call('XACK', KEYS[1], unpack(ARGV))
return redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
