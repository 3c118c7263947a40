-- Takes the next range of a tag: as long as its step, and at least as long as asked for. Nothing where the tag is
-- not there, or its numbers do not reach.
-- ?1 tag, ?2 length at least
UPDATE id_segment
SET next = next + max(step, ?2), updated_at = {now}
WHERE tag = ?1 AND next <= 9223372036854775807 - max(step, ?2)
RETURNING next - max(step, ?2) AS first, max(step, ?2) AS length, step
