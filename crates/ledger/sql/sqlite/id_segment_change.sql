-- Changes what is named of a tag. Its start only rises, past all that is given out; naming the same one again
-- changes nothing.
-- ?1 tag, ?2 start or NULL, ?3 step or NULL, ?4 description or NULL
UPDATE id_segment
SET next        = CASE WHEN ?2 > start THEN ?2 ELSE next END,
    start       = coalesce(?2, start),
    step        = coalesce(?3, step),
    description = coalesce(?4, description),
    updated_at  = {now}
WHERE tag = ?1 AND (?2 IS NULL OR ?2 = start OR (?2 > start AND ?2 >= next))
RETURNING tag, start, next, step, description, created_at, updated_at
