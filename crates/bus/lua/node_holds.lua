-- Which attempts have a slot. Changes nothing.
--
-- ARGV     the slots
-- Answer   {1 if all slots are known; then for each, 1 or 0}
local online, complete = unpack(redis.call('HMGET', RECORD, 'online', 'complete'))
local answers = { (online == '1' and complete == '1') and 1 or 0 }
for _, slot in ipairs(ARGV) do
  local taken = online == '1' and redis.call('HEXISTS', SLOTS, slot) == 1
  local ends = taken and redis.call('ZSCORE', RESERVED, slot)
  answers[#answers + 1] = (taken and (not ends or tonumber(ends) > now)) and 1 or 0
end
return answers
