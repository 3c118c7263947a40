-- Longest overdue first.
-- $1 signer, $2 limit
SELECT nonce, hold
FROM signer_nonce_allocation
WHERE signer = $1 AND status = 'HELD' AND held_until <= now()
ORDER BY held_until
LIMIT $2
