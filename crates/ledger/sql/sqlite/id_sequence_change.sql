-- Changes what is named of a sequence. Its start only rises, past all that is granted; naming the same one again
-- changes nothing.
-- ?1 sequence, ?2 start or NULL, ?3 increment or NULL
UPDATE id_sequence
SET next       = CASE WHEN ?2 > start THEN ?2 ELSE next END,
    start      = coalesce(?2, start),
    increment  = coalesce(?3, increment),
    updated_at = {now}
WHERE sequence = ?1 AND (?2 IS NULL OR ?2 = start OR (?2 > start AND ?2 >= next))
RETURNING sequence, start, next, increment, created_at, updated_at
