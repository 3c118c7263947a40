-- Puts entries into an instance's inbox, in their order, as far as there is room. Nothing is ever trimmed.
--
-- KEYS[1]  the stream
-- ARGV[1]  how many entries it may hold
-- ARGV[2]  how long it stays without a use, in milliseconds
-- ARGV[3…] the entries
-- Answer   how many were put in, the first ones: the rest found it full. -1: there is no such inbox.
local room = tonumber(ARGV[1]) - redis.call('XLEN', KEYS[1])
local sent = 0
for i = 3, #ARGV do
  if sent >= room then
    break
  end
  if not redis.call('XADD', KEYS[1], 'NOMKSTREAM', '*', 'e', ARGV[i]) then
    return -1
  end
  sent = sent + 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return sent
