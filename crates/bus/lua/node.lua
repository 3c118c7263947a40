-- What every script of a node begins with; this file stands before each of them.
--
-- KEYS[1]  the record, a hash that lives as long as its node is heard of; one that was withdrawn has its version alone:
--          epoch     the connection that may write it
--          version   rises with every change that readers should see, and never goes back
--          online    1; 0 once its connection said that the node is gone
--          complete  1 once all slots are known; until then nothing is reserved
--          vouched   until when the connection vouches for the slots, in microseconds: past that nothing is reserved; 0
--                    while they are lent to its holder
--          listed    when the holder, while they are lent to it, listed them last, in microseconds
--          word      the number of the connection's last heartbeat; one that comes late changes nothing. Where it is older than one
--                    that was answered, Redis has come back with older data
--          since     when the connection began, in microseconds
--          principal '<epoch> <name>': whose token the connection of that epoch showed; a new connection of another
--                    principal does not take the node over
--          holder, capacity, state, document: what the connection says
--          told      how many slots were taken when the version rose last
-- KEYS[2]  the slots, a hash of <job>/<attempt> to 's<epoch>' (sent by that connection; 0: it was running already) or
--          'r<token>' (reserved by the lane of that token)
-- KEYS[3]  the reservations, a sorted set of <job>/<attempt> by their end, in microseconds
--
-- Slots and reservations count only beside a record that is online, and outlive it a little: never the other way round.
local RECORD, SLOTS, RESERVED = KEYS[1], KEYS[2], KEYS[3]
local OUTLIVE_MS = 1000

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

-- A number as Redis is to keep it: Lua's own form loses digits.
local function text(number)
  return string.format('%.0f', number)
end

local function is_online()
  return redis.call('HGET', RECORD, 'online') == '1'
end

-- Frees one slot, reserved or sent.
local function free(slot)
  redis.call('HDEL', SLOTS, slot)
  redis.call('ZREM', RESERVED, slot)
end

-- Frees what was reserved for too long. With how long the record lives without another word, in milliseconds, it frees also what
-- is reserved for longer: no reservation is, until the clock was set back.
local function prune(lives_ms)
  for _, slot in ipairs(redis.call('ZRANGEBYSCORE', RESERVED, '-inf', text(now))) do
    free(slot)
  end
  if lives_ms then
    local last = '(' .. text(now + tonumber(lives_ms) * 1000)
    for _, slot in ipairs(redis.call('ZRANGEBYSCORE', RESERVED, last, '+inf')) do
      free(slot)
    end
  end
end

-- Takes a slot for what is known to run.
local function take(slot)
  redis.call('HSET', SLOTS, slot, 's0')
  redis.call('ZREM', RESERVED, slot)
end

local function next_version()
  local old = tonumber(redis.call('HGET', RECORD, 'version') or 0)
  return math.max(old + 1, now)
end

-- The connection vouches for the slots until then, or longer if it has said so before; but not past the life of the record
-- without another word, which is so many milliseconds: once the clock was set back, what was said before is too far ahead. Without
-- an end they are lent to its holder.
local function vouch(ends, lives_ms)
  if ends == '' then
    redis.call('HSET', RECORD, 'vouched', '0')
    return
  end
  local before = tonumber(redis.call('HGET', RECORD, 'vouched') or 0)
  local last = math.min(math.max(tonumber(ends), before), now + tonumber(lives_ms) * 1000)
  if last ~= before then
    redis.call('HSET', RECORD, 'vouched', text(last))
  end
end

-- Whether the slots are lent to the record's holder.
local function is_lent()
  return redis.call('HGET', RECORD, 'vouched') == '0'
end

-- Whether all slots are known, and vouched for now.
local function is_known()
  local known = redis.call('HMGET', RECORD, 'online', 'complete', 'vouched')
  return known[1] == '1' and known[2] == '1' and tonumber(known[3] or 0) > now
end

-- What was sent is exactly this: the arguments from that one on. A reservation whose end is not known, as where Redis has evicted
-- the ends, is none: it would never be over.
local function recount(first)
  local running = {}
  for i = first, #ARGV do
    running[ARGV[i]] = true
  end
  local slots = redis.call('HGETALL', SLOTS)
  for i = 1, #slots, 2 do
    local was_sent = string.sub(slots[i + 1], 1, 1) == 's'
    if was_sent and not running[slots[i]] or not was_sent and not redis.call('ZSCORE', RESERVED, slots[i]) then
      redis.call('HDEL', SLOTS, slots[i])
    end
  end
  for i = first, #ARGV do
    take(ARGV[i])
  end
end

-- Lets the slots outlive the record, which is left as long as it has.
local function outlive()
  local left = redis.call('PTTL', RECORD) + OUTLIVE_MS
  redis.call('PEXPIRE', SLOTS, left)
  redis.call('PEXPIRE', RESERVED, left)
end

-- Whether the connection may write: 0 if so; -1: there is nothing that it could write (connect anew);
-- -2: a newer connection has taken over.
local function refusal(epoch)
  local newest = tonumber(redis.call('HGET', RECORD, 'epoch') or 0)
  if newest > tonumber(epoch) then
    return -2
  end
  if newest < tonumber(epoch) or not is_online() then
    return -1
  end
  return 0
end
