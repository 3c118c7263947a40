-- Raises every segment past the ids that were given since, and the ranges that instances may have in memory.
-- $1 so many ids, $2 so many ranges, $3 the longest that a range grows to by itself
UPDATE id_segment
SET next = next + least($2 * greatest(step, $3)::numeric + $1, 9223372036854775807 - next)::bigint, updated_at = now()
