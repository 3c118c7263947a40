-- Reserves slots, each unless the node is full by then.
--
-- ARGV[1]  for how long, in milliseconds
-- ARGV[2…] a slot, and the token of its lane; and so on
-- Answer   for each, 1: it has its slot, now or already. 0: the node is full. -1: it takes nothing now. -2: its slots are
--          lent to its holder
local online, state, capacity, complete, listed =
  unpack(redis.call('HMGET', RECORD, 'online', 'state', 'capacity', 'complete', 'listed'))
local is_ready = is_known() and state == 'accepting'
local unready = (listed and complete == '1' and state == 'accepting') and -2 or -1
local used = 0
if online == '1' then
  prune()
  used = redis.call('HLEN', SLOTS)
end
local ends = text(now + tonumber(ARGV[1]) * 1000)

local function reserve(slot, token)
  if online ~= '1' then
    return -1
  end
  local taken = redis.call('HGET', SLOTS, slot)
  if taken then
    -- A lane's next owner takes over what the last one reserved. A repeated call gains no time.
    if string.sub(taken, 1, 1) == 'r' and tonumber(string.sub(taken, 2)) < tonumber(token) then
      redis.call('HSET', SLOTS, slot, 'r' .. token)
      redis.call('ZADD', RESERVED, ends, slot)
    end
    return 1
  end
  if not is_ready then
    return unready
  end
  if used >= tonumber(capacity) then
    return 0
  end
  redis.call('HSET', SLOTS, slot, 'r' .. token)
  redis.call('ZADD', RESERVED, ends, slot)
  used = used + 1
  return 1
end

local answers = {}
for i = 2, #ARGV, 2 do
  answers[#answers + 1] = reserve(ARGV[i], ARGV[i + 1])
end
outlive()
return answers
