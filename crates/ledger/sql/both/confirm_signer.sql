-- The signer as it stands while its next nonce is confirmed: NULL for the last nonce of one that has none, and for the first
-- nonce of one without a row. The last nonce is read as in `signer_load`, however many were added since the plan was made.
-- The nonce was used if its hold or an operator said so; what a confirmation made CONSUMED may be a mistyped nonce's.
-- $1 signer, $2 the nonce that is confirmed as the next one
SELECT coalesce(s.recovering, r.unknown_signers_wait) AS recovering, s.confirmed_nonce, s.first_nonce,
       (SELECT nonce FROM signer_nonce_allocation WHERE signer = $1 ORDER BY nonce DESC LIMIT 1) AS last_nonce,
       EXISTS (SELECT 1 FROM signer_nonce_allocation
               WHERE signer = $1 AND nonce = $2 AND status = 'CONSUMED' AND owner <> 'recover') AS is_used
FROM ledger_recovery r
LEFT JOIN signer s ON s.signer = $1
