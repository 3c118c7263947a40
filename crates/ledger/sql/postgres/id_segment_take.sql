-- Takes the next range of a tag: as long as its step, and at least as long as asked for. Nothing where the tag is
-- not there, or its numbers do not reach.
-- $1 tag, $2 length at least
UPDATE id_segment
SET next = next + greatest(step, $2), updated_at = clock_timestamp()
WHERE tag = $1 AND (SELECT is_current FROM ledger_current) AND next <= 9223372036854775807 - greatest(step, $2)
RETURNING next - greatest(step, $2) AS first, greatest(step, $2) AS length, step,
          {mark}
