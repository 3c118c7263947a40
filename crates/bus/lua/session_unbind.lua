-- Forgets where a session is, unless a later owner said it.
--
-- KEYS[1]  the binding, a hash: token, instance, node, pool
-- ARGV[1]  the token of the owner's lease
-- Answer   1
local bound = tonumber(redis.call('HGET', KEYS[1], 'token') or 0) or 0
if bound <= tonumber(ARGV[1]) then
  redis.call('DEL', KEYS[1])
end
return 1
