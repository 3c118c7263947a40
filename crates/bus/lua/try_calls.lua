-- Makes each call once that other scripts make, and each that is made on a key without a script: the user may lack the right to
-- one, and the server may have it under another name. Leaves nothing behind.
--
-- KEYS[1]  a key that nothing else needs
-- Answer   1; or what the server says of the first call that it refuses, with the name of that call
local KEY = KEYS[1]
local CALLS = {
  { 'TIME' },
  { 'DEL', KEY },
  { 'SET', KEY, '1', 'PX', '1000' },
  { 'GET', KEY },
  { 'EXISTS', KEY },
  { 'DEL', KEY },
  { 'HSET', KEY, 'a', '1' },
  { 'HSETNX', KEY, 'a', '1' },
  { 'HGET', KEY, 'a' },
  { 'HMGET', KEY, 'a' },
  { 'HGETALL', KEY },
  { 'HEXISTS', KEY, 'a' },
  { 'HLEN', KEY },
  { 'HDEL', KEY, 'b' },
  { 'PEXPIRE', KEY, '1000' },
  { 'PTTL', KEY },
  { 'DEL', KEY },
  { 'ZADD', KEY, '1', 'a' },
  { 'ZSCORE', KEY, 'a' },
  { 'ZCOUNT', KEY, '-inf', '+inf' },
  { 'ZRANGEBYSCORE', KEY, '-inf', '+inf' },
  { 'ZREM', KEY, 'b' },
  { 'DEL', KEY },
  { 'XGROUP', 'CREATE', KEY, 'g', '0', 'MKSTREAM' },
  { 'XADD', KEY, 'NOMKSTREAM', '*', 'e', '1' },
  { 'XLEN', KEY },
  { 'XRANGE', KEY, '-', '+', 'COUNT', '1' },
  { 'XREADGROUP', 'GROUP', 'g', 'c', 'COUNT', '1', 'STREAMS', KEY, '>' },
  { 'XAUTOCLAIM', KEY, 'g', 'c', '0', '0-0', 'COUNT', '1' },
  { 'XACK', KEY, 'g', '0-1' },
  { 'XDEL', KEY, '0-1' },
}

local refused
for _, call in ipairs(CALLS) do
  local answer = redis.pcall(unpack(call))
  if type(answer) == 'table' and answer.err then
    answer.err = answer.err .. ' (' .. call[1] .. ')'
    refused = answer
    break
  end
end
-- A user who may not delete has got no further than the first deletion, and nothing is there.
redis.pcall('DEL', KEY)
return refused or 1
