-- Takes reservations back. What was sent stays, and so does what a later owner of the lane reserved.
--
-- ARGV     a slot, and the token of its lane; and so on
-- Answer   for each, 1: it was reserved and is free. 2: it was sent. 0: there is none. 3: there is none here, but the
--          node's holder may have given the slot itself
local has_record = is_online()
if has_record then
  prune()
end
local is_none_sure = is_known() or redis.call('HGET', RECORD, 'online') == '0'
local answers = {}
for i = 1, #ARGV, 2 do
  local answer = is_none_sure and 0 or 3
  local taken = has_record and redis.call('HGET', SLOTS, ARGV[i])
  if taken and string.sub(taken, 1, 1) == 's' then
    answer = 2
  elseif taken and tonumber(string.sub(taken, 2)) <= tonumber(ARGV[i + 1]) then
    free(ARGV[i])
    answer = 1
  elseif taken then
    answer = 0
  end
  answers[#answers + 1] = answer
end
return answers
