-- What a new owner must know. Sent after its acquire was answered: in one statement with it, the
-- snapshot would be from before the acquire waited for its predecessor's last commit.
-- The last nonce is the first of a descending order: a plan of `max()` that was made while the signer had few nonces reads
-- all of them later.
-- A signer without a row is recovering if a recovery says so of all of them.
-- The holes themselves are read by `nonce_holes`, where there are any: most signers have none.
-- Those in flight are counted only where there is a window to compare them with.
-- $1 signer
SELECT s.first_nonce, s.hold_ms, s.on_expiry, s.max_in_flight, s.shared_keys,
       coalesce(s.recovering, (SELECT unknown_signers_wait FROM ledger_recovery)) AS recovering,
       s.confirmed_nonce IS NOT NULL AS confirmed,
       (SELECT nonce FROM signer_nonce_allocation WHERE signer = $1 ORDER BY nonce DESC LIMIT 1) AS last_nonce,
       CASE WHEN s.max_in_flight IS NULL THEN 0 ELSE
           (SELECT count(*) FROM signer_nonce_allocation WHERE signer = $1 AND status = 'HELD')
           + (SELECT count(*) FROM signer_nonce_allocation
              WHERE signer = $1 AND status IN ('RELEASED', 'QUARANTINED') AND status = 'QUARANTINED')
       END AS in_flight,
       EXISTS (SELECT FROM signer_nonce_allocation
               WHERE signer = $1 AND status IN ('RELEASED', 'QUARANTINED') AND status = 'RELEASED') AS has_holes
FROM (SELECT) AS one
LEFT JOIN signer s ON s.signer = $1
