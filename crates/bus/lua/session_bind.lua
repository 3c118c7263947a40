-- Binds a session to its owner for a while, unless a later owner did.
--
-- KEYS[1]  the binding, a hash: token, instance, node, pool
-- ARGV[1]  the token of the owner's lease
-- ARGV[2]  how long the binding lives, in milliseconds
-- ARGV[3]  the instance
-- ARGV[4]  the node that had the last job; may be empty
-- ARGV[5]  the pool of that node; may be empty
-- Answer   1: it is written. 0: one of a higher token is there.
local bound = tonumber(redis.call('HGET', KEYS[1], 'token') or 0) or 0
if bound > tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'instance', ARGV[3], 'node', ARGV[4], 'pool', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
