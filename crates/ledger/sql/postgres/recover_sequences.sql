-- Raises every sequence past the numbers that were given since.
-- $1 so many numbers
UPDATE id_sequence
SET next = next + least($1 * increment::numeric, 9223372036854775807 - next)::bigint, updated_at = now()
