-- The nonces of a signer in their order. A line with a mark is there only if the list is of that state: a partial index serves
-- a condition that is written out. Those that are HELD are read in the order of the index of holds and then put into their
-- own: otherwise they would be looked for along the primary key, among all that is CONSUMED. What is CONSUMED is said by what
-- it is not, so that the server expects many and reads no further along the primary key than the list goes.
-- $1 signer, $2 after this nonce (-1 for the start), $3 limit
SELECT nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at
FROM (
    SELECT nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at
    FROM signer_nonce_allocation
    WHERE signer = $1
      AND status = 'HELD' --? HELD
      AND status NOT IN ('HELD', 'RELEASED', 'QUARANTINED') --? CONSUMED
      AND status IN ('RELEASED', 'QUARANTINED') AND status = 'RELEASED' --? RELEASED
      AND status IN ('RELEASED', 'QUARANTINED') AND status = 'QUARANTINED' --? QUARANTINED
    ORDER BY held_until --? HELD
) AS n
WHERE nonce
      + 0 --? HELD
      > $2
ORDER BY nonce
LIMIT $3
