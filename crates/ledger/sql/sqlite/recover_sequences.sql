-- Raises every sequence past the numbers that were given since.
-- ?1 so many numbers
UPDATE id_sequence
SET next = next + min(CASE WHEN increment > 9223372036854775807 / ?1 THEN 9223372036854775807 ELSE increment * ?1 END,
                      9223372036854775807 - next),
    updated_at = {now}
