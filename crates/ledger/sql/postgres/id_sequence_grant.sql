-- Grants the next numbers of sequences, each named once; answers where they go on. Nothing of one that is not there, or whose numbers do not
-- reach. Rows are locked in one order.
-- $1 sequences, $2 how many of each
WITH wanted AS (
    SELECT s.sequence, w.count
    FROM id_sequence s
    JOIN (SELECT unnest($1::text[]) AS sequence, unnest($2::bigint[]) AS count) AS w ON s.sequence = w.sequence
    ORDER BY s.sequence
    FOR NO KEY UPDATE OF s
)
UPDATE id_sequence s
SET next = s.next + wanted.count * s.increment, updated_at = clock_timestamp()
FROM wanted
WHERE s.sequence = wanted.sequence AND (SELECT is_current FROM ledger_current) AND s.next <= 9223372036854775807 - wanted.count * s.increment
RETURNING s.sequence, s.next, s.increment,
          {mark}
