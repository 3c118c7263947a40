-- Those that are there.
-- ?1 JSON array of sequences
SELECT sequence FROM id_sequence WHERE sequence IN (SELECT value FROM json_each(?1))
