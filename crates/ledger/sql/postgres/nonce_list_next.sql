-- As nonce_list for those that are HELD, but only among the next 10,000 nonces, and only of a signer that holds more than
-- 1,000: all of these would be put into order for each page. The state is compared so that no index of holds serves it.
-- $1 signer, $2 after this nonce (-1 for the start), $3 limit
SELECT nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at
FROM signer_nonce_allocation
WHERE signer = $1
  AND nonce > greatest($2, (SELECT first_nonce FROM signer WHERE signer = $1) - 1)
  AND nonce <= greatest($2, (SELECT first_nonce FROM signer WHERE signer = $1) - 1) + 10000
  AND status || '' = 'HELD'
  AND (SELECT true FROM signer_nonce_allocation WHERE signer = $1 AND status = 'HELD' ORDER BY held_until LIMIT 1 OFFSET 1000)
ORDER BY nonce
LIMIT $3
