-- Longest overdue first.
-- $1 signer, $2 limit, $3 how far ahead of the time to look, in ms
SELECT nonce, hold, updated_at AS granted_at, held_until, now() AS read_at
FROM signer_nonce_allocation
WHERE signer = $1 AND status = 'HELD' AND held_until <= now() + $3 * interval '1 millisecond'
ORDER BY held_until
LIMIT $2
