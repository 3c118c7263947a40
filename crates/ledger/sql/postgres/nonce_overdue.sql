-- Those that ran out, and the next that will. It is searched by signer and time together, so that only the index of both gives
-- the order: by the index of times alone, whatever other signers hold would be read to find the first of this one.
-- $1 signer, $2 limit, $3 how far ahead of the time to look, in ms, $4 the first time, in microseconds
(
    SELECT nonce, hold, updated_at AS granted_at, held_until, now() AS read_at
    FROM signer_nonce_allocation
    WHERE signer = $1 AND status = 'HELD' AND held_until <= now() + $3 * interval '1 millisecond'
      AND held_until >= 'epoch'::timestamptz + $4 * interval '1 microsecond'
    ORDER BY held_until
    LIMIT $2
)
UNION ALL
SELECT nonce, hold, updated_at, held_until, now()
FROM (
    SELECT *
    FROM signer_nonce_allocation
    WHERE status = 'HELD' AND (signer, held_until) > ($1, now() + $3 * interval '1 millisecond')
    ORDER BY signer, held_until
    LIMIT 1
) AS next
WHERE next.signer = $1
