-- Frees the slots of attempts that are over, reserved or sent.
--
-- ARGV     the slots
-- Answer   1
for _, slot in ipairs(ARGV) do
  free(slot)
end
return 1
