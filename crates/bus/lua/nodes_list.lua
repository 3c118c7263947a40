-- Lists nodes as online for a while. Those whose time is over go, and beyond the limit those whose time is nearest.
--
-- KEYS[1]  the list, a sorted set of nodes by the end of their time, in milliseconds
-- ARGV[1]  for how long, in milliseconds
-- ARGV[2]  how many nodes the list may hold
-- ARGV[3…] the nodes
-- Answer   1
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local ends = string.format('%.0f', now + tonumber(ARGV[1]))
for i = 3, #ARGV do
  redis.call('ZADD', KEYS[1], ends, ARGV[i])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - tonumber(ARGV[2]))
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[1]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 1
