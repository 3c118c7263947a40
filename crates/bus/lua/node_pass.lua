-- Passes slots on: what is over is free, and what follows it over this connection has its slot, with nobody in between.
--
-- ARGV[1]  the connection's epoch
-- ARGV[2…] a slot that was sent and is over, and the slot that follows it; and so on
-- Answer   for each pair, 1: what follows may be sent, or was by this very connection. 0: it must not be.
local is_refused = refusal(ARGV[1]) < 0
local mine = 's' .. ARGV[1]
local answers = {}
for i = 2, #ARGV, 2 do
  local over, follows = ARGV[i], ARGV[i + 1]
  local had = redis.call('HGET', SLOTS, over)
  local is_mine = not is_refused and redis.call('HGET', SLOTS, follows) == mine
  free(over)
  if not is_refused and (is_mine or had and string.sub(had, 1, 1) == 's') then
    redis.call('HSET', SLOTS, follows, mine)
    redis.call('ZREM', RESERVED, follows)
    is_mine = true
  end
  answers[#answers + 1] = is_mine and 1 or 0
end
if not is_refused then
  outlive()
end
return answers
