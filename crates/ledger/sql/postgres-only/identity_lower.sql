-- Lowers the position of a ledger that lacks what an instance was answered, below all that any instance has seen (looks would
-- take years for so much): else those that lack nothing would grant again what that one has granted. Once: one that was
-- lowered or recovered is out of these bounds, as is one with which others have gone on for long. A recovery adds four times as
-- much. It waits for no standby: the new primary may have none yet.
-- $1 cluster, $2 the position that the instance has seen
UPDATE ledger_identity
SET position = position - 1073741824
WHERE cluster = $1 AND position BETWEEN $2::bigint - 536870912 AND $2::bigint + 65536
  AND set_config('synchronous_commit', 'local', true) IS NOT NULL
