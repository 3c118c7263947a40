-- What a new owner must know. Sent after its acquire was answered.
-- A signer without a row is recovering if a recovery says so of all of them.
-- The holes themselves are read by `nonce_holes`, where there are any: most signers have none.
-- Those in flight are counted only where there is a window to compare them with.
-- ?1 signer
SELECT s.first_nonce, s.hold_ms, s.on_expiry, s.max_in_flight, s.shared_keys,
       coalesce(s.recovering, (SELECT unknown_signers_wait FROM ledger_recovery)) AS recovering,
       s.confirmed_nonce IS NOT NULL AS confirmed,
       (SELECT max(nonce) FROM signer_nonce_allocation WHERE signer = ?1) AS last_nonce,
       CASE WHEN s.max_in_flight IS NULL THEN 0 ELSE
           (SELECT count(*) FROM signer_nonce_allocation INDEXED BY signer_nonce_held
            WHERE signer = ?1 AND status = 'HELD')
           + (SELECT count(*) FROM signer_nonce_allocation INDEXED BY signer_nonce_hole
              WHERE signer = ?1 AND status IN ('RELEASED', 'QUARANTINED') AND status = 'QUARANTINED')
       END AS in_flight,
       EXISTS (SELECT 1 FROM signer_nonce_allocation INDEXED BY signer_nonce_hole
               WHERE signer = ?1 AND status IN ('RELEASED', 'QUARANTINED') AND status = 'RELEASED') AS has_holes
FROM (SELECT 1) AS one
LEFT JOIN signer s ON s.signer = ?1
