-- Ends an inbox for good if nothing is left in it: every sender is refused from now on, and an owner that was only asleep
-- cannot open it again. One that lives by its ledger deletes the mark first.
--
-- KEYS[1]  the stream
-- KEYS[2]  the mark that it was closed
-- ARGV[1]  how long the mark stays, in milliseconds
-- Answer   1: it is closed. 0: something is left in it, and nothing was done.
if redis.call('XLEN', KEYS[1]) > 0 then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[2], '1', 'PX', ARGV[1])
return 1
