-- Grants the next numbers of sequences, each named once; answers where they go on. Nothing of one that is not there, or whose numbers do not
-- reach.
-- ?1 JSON array of {sequence, count}, ?2 the transaction's time
UPDATE id_sequence
SET next = next + (w.value ->> 'count') * increment, updated_at = ?2
FROM json_each(?1) AS w
WHERE sequence = w.value ->> 'sequence'
  AND next <= 9223372036854775807 - (w.value ->> 'count') * increment
RETURNING sequence, next, increment
