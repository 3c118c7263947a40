-- Raises every segment past the ids that were given since: by 100 steps, and at least by $1.
-- $1 at least so many ids
UPDATE id_segment
SET next = next + least(greatest(step * 100::numeric, $1), 9223372036854775807 - next)::bigint, updated_at = now()
