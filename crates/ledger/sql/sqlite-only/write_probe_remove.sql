-- Removes the row that write_probe has left.
-- ?1 name
DELETE FROM setting WHERE name = ?1
