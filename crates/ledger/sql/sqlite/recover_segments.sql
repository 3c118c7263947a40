-- Raises every segment past the ids that were given since: by 100 steps, and at least by ?1.
-- ?1 at least so many ids
UPDATE id_segment
SET next = next + min(max(CASE WHEN step > 92233720368547758 THEN 9223372036854775807 ELSE step * 100 END, ?1),
                      9223372036854775807 - next),
    updated_at = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
