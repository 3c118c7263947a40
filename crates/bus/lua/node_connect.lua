-- A new connection takes a node over, unless one of another principal has it, or a younger one to another instance that
-- hears of the node. One whose instance is gone can seem younger: its call reached the server after its end. Of two that seem
-- equally old the one that took the node last keeps it: otherwise each would take it from the other in turn. But one that comes
-- for the first time when it has been open for long takes it from an older one alone: its instance was frozen, or had no bus.
--
-- ARGV[1]  the instance that holds it
-- ARGV[2]  how much the node may run at once
-- ARGV[3]  its state
-- ARGV[4]  its document
-- ARGV[5]  how long the record lives, in milliseconds
-- ARGV[6]  how old the connection is, in microseconds
-- ARGV[7]  connections whose ages differ by no more than this seem equally old, in microseconds
-- ARGV[8]  1 if the slots are lent to the instance
-- ARGV[9]  the epoch of a connection whose instance is gone; 0 for none
-- ARGV[10] whose token the node showed
-- ARGV[11] the connection's epoch is at least this: above all that the instance knows of the node
-- ARGV[12] the epoch under which the connection had the node before; 0 for a new one
-- ARGV[13…] the slots of what the node says that it is running
-- Answer   {the connection's epoch, which is the record's version; or -2: a younger one has it; or -3: another principal's
--           has it, 1 if all slots are known, the time in microseconds}

-- Whose the connection of that epoch is; nil where an instance of an older release wrote it, which leaves what was written of
-- an earlier one.
local function owner_of(principal, epoch)
  local begin = epoch .. ' '
  if principal and string.sub(principal, 1, #begin) == begin then
    return string.sub(principal, #begin + 1)
  end
end

local since = now - tonumber(ARGV[6])
local complete = '0'
if is_online() then
  local before = redis.call('HMGET', RECORD, 'complete', 'holder', 'since', 'state', 'epoch', 'principal')
  local owner = owner_of(before[6], before[5])
  if owner and owner ~= ARGV[10] then
    return { -3, 0, now }
  end
  local lead, alike = tonumber(before[3] or 0) - since, tonumber(ARGV[7])
  local has_lost = ARGV[12] ~= '0' and tonumber(before[5] or 0) > tonumber(ARGV[12])
  local is_late = ARGV[12] == '0' and tonumber(ARGV[6]) > alike
  local is_younger = lead > alike or has_lost and lead >= -alike or is_late and lead > 0
  local is_gone = before[5] == ARGV[9]
  if is_younger and before[2] ~= ARGV[1] and before[4] ~= 'unhealthy' and not is_gone then
    return { -2, 0, now }
  end
  complete = before[1]
  prune()
else
  redis.call('DEL', SLOTS, RESERVED)
  redis.call('HDEL', RECORD, 'vouched')
end
if ARGV[8] == '1' then
  vouch('')
elseif is_lent() then
  redis.call('HDEL', RECORD, 'vouched')
end
redis.call('HDEL', RECORD, 'listed', 'word')
recount(13)

local epoch = math.max(next_version(), tonumber(ARGV[11]))
redis.call('HSET', RECORD, 'epoch', text(epoch), 'version', text(epoch), 'online', '1', 'complete', complete,
  'since', text(since), 'holder', ARGV[1], 'principal', text(epoch) .. ' ' .. ARGV[10],
  'capacity', ARGV[2], 'state', ARGV[3], 'document', ARGV[4], 'told', redis.call('HLEN', SLOTS))
redis.call('PEXPIRE', RECORD, ARGV[5])
outlive()
return { epoch, tonumber(complete), now }
