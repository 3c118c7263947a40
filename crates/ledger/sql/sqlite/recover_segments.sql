-- Raises every segment past the ids that were given since, and the ranges that instances may have in memory.
-- ?1 so many ids, ?2 so many ranges, ?3 the longest that a range grows to by itself
UPDATE id_segment
SET next = next + min(CASE WHEN max(step, ?3) > (9223372036854775807 - ?1) / ?2 THEN 9223372036854775807
                           ELSE ?2 * max(step, ?3) + ?1 END,
                      9223372036854775807 - next),
    updated_at = {now}
