SELECT status, count(*) AS nonces FROM signer_nonce_allocation WHERE status <> 'CONSUMED' GROUP BY status
