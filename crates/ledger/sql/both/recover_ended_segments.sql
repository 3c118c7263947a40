-- The segments that have no range left once they are raised past the ids that were given since, and the ranges that instances may
-- have in memory. Sent before recover_segments.
-- $1 so many ids, $2 so many ranges, $3 the longest that a range grows to by itself
SELECT tag FROM id_segment
WHERE CASE WHEN step < $3 THEN $2 * $3 + step > 9223372036854775807 - next - $1
           ELSE step > (9223372036854775807 - next - $1) / ($2 + 1) END
ORDER BY tag
