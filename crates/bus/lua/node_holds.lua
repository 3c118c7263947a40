-- Which attempts have a slot. Changes nothing.
--
-- ARGV     the slots
-- Answer   {1 if all slots are known, and vouched for; then for each, 1 or 0}
local is_online = is_online()
local answers = { is_known() and 1 or 0 }
for _, slot in ipairs(ARGV) do
  local taken = is_online and redis.call('HEXISTS', SLOTS, slot) == 1
  local ends = taken and redis.call('ZSCORE', RESERVED, slot)
  answers[#answers + 1] = (taken and (not ends or tonumber(ends) > now)) and 1 or 0
end
return answers
