-- $1 signer, $2 after this nonce (-1 for the start), $3 status or NULL, $4 limit
SELECT nonce, status, hold::text AS hold, (extract(epoch FROM held_until) * 1000000)::bigint AS held_until, tx_hash,
       fencing_token, owner,
       (extract(epoch FROM created_at) * 1000000)::bigint AS created_at,
       (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at
FROM signer_nonce_allocation
WHERE signer = $1 AND nonce > $2 AND ($3::text IS NULL OR status = $3)
ORDER BY nonce
LIMIT $4
