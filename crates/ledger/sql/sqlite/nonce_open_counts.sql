SELECT 'HELD' AS status, count(*) AS nonces
FROM signer_nonce_allocation INDEXED BY signer_nonce_held
WHERE status = 'HELD'
UNION ALL
SELECT status, count(*)
FROM signer_nonce_allocation INDEXED BY signer_nonce_hole
WHERE status IN ('RELEASED', 'QUARANTINED')
GROUP BY status
