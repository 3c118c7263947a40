-- The nonces of a signer in their order. A line with a mark is there only if the list is of that state: a partial index serves
-- a condition that is written out. nonce_holes says why the indexes are named.
-- ?1 signer, ?2 after this nonce (-1 for the start), ?3 limit
SELECT nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at
FROM signer_nonce_allocation
     INDEXED BY signer_nonce_held --? HELD
     INDEXED BY signer_nonce_hole --? RELEASED
     INDEXED BY signer_nonce_hole --? QUARANTINED
WHERE signer = ?1 AND nonce > ?2
  AND status = 'HELD' --? HELD
  AND status = 'CONSUMED' --? CONSUMED
  AND status IN ('RELEASED', 'QUARANTINED') AND status = 'RELEASED' --? RELEASED
  AND status IN ('RELEASED', 'QUARANTINED') AND status = 'QUARANTINED' --? QUARANTINED
ORDER BY nonce
LIMIT ?3
