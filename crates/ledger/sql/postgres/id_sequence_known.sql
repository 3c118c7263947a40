-- Those that are there.
-- $1 sequences
SELECT sequence FROM id_sequence WHERE sequence = ANY ($1)
