-- Raises the position of this ledger, if it is the one that is known and as far as is known.
-- $1 cluster, $2 position
UPDATE ledger_identity
SET position = position + 1
WHERE cluster = $1 AND position >= $2
RETURNING position
