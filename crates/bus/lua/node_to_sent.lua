-- Turns reservations into slots of what is about to be sent over this connection.
--
-- ARGV[1]  the connection's epoch
-- ARGV[2…] the slots
-- Answer   for each, 1: it may be sent, or was by this very connection. 0: it must not be.
local is_refused = refusal(ARGV[1]) < 0
if not is_refused then
  prune()
end
local mine = 's' .. ARGV[1]
local answers = {}
for i = 2, #ARGV do
  local taken = not is_refused and redis.call('HGET', SLOTS, ARGV[i])
  if taken and string.sub(taken, 1, 1) == 'r' then
    redis.call('HSET', SLOTS, ARGV[i], mine)
    redis.call('ZREM', RESERVED, ARGV[i])
    taken = mine
  end
  answers[i - 1] = taken == mine and 1 or 0
end
return answers
