SELECT 'HELD' AS status, count(*) AS nonces FROM signer_nonce_allocation WHERE status = 'HELD'
UNION ALL
SELECT status, count(*) FROM signer_nonce_allocation WHERE status IN ('RELEASED', 'QUARANTINED') GROUP BY status
