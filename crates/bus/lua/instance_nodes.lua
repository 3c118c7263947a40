-- Changes the list of the nodes that one instance holds: how other instances learn of nodes that they do not know.
--
-- KEYS[1]  the list, a hash of each node to the version of its record
-- ARGV[1]  for how long the list lives, in milliseconds
-- ARGV[2]  how many nodes the list may name; further ones are left out
-- ARGV[3]  1: the list is written anew, and what it named before goes; 0: it is changed
-- ARGV[4]  how many nodes follow that the instance holds no more
-- ARGV[5…] those nodes; then a node that the instance holds, and its version; and so on
-- Answer   how many nodes the list names now
local LIST, GONE = KEYS[1], tonumber(ARGV[4])
if ARGV[3] == '1' then
  redis.call('DEL', LIST)
end
for i = 5, 4 + GONE do
  redis.call('HDEL', LIST, ARGV[i])
end
local count = redis.call('HLEN', LIST)
for i = 5 + GONE, #ARGV, 2 do
  if count < tonumber(ARGV[2]) or redis.call('HEXISTS', LIST, ARGV[i]) == 1 then
    count = count + redis.call('HSET', LIST, ARGV[i], ARGV[i + 1])
  end
end
redis.call('PEXPIRE', LIST, ARGV[1])
return count
