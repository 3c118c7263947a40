-- Which attempts have a slot. Changes nothing.
--
-- ARGV     the slots
-- Answer   {the holder of the node's connection, nothing if it is not connected;
--          how old the knowledge of all slots is, in microseconds: 0 if it is vouched for, and only then; -1 if not all
--          are known;
--          for each slot 1 or 0, in a list}
local is_online = is_online()
local holder, complete, listed = unpack(redis.call('HMGET', RECORD, 'holder', 'complete', 'listed'))
local age = -1
if is_known() then
  age = 0
elseif is_online and complete == '1' and tonumber(listed or 0) > 0 then
  age = math.max(now - tonumber(listed), 1)
end
local answers = {}
for _, slot in ipairs(ARGV) do
  local taken = is_online and redis.call('HEXISTS', SLOTS, slot) == 1
  local ends = taken and redis.call('ZSCORE', RESERVED, slot)
  answers[#answers + 1] = (taken and (not ends or tonumber(ends) > now)) and 1 or 0
end
return { is_online and holder, age, answers }
