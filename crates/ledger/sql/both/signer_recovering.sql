-- Whether a signer grants nothing until its next nonce is confirmed. One without a row does so if a recovery says it of all of
-- them. Reads no nonce.
-- $1 signer
SELECT coalesce(
    (SELECT recovering FROM signer WHERE signer = $1),
    (SELECT unknown_signers_wait FROM ledger_recovery)
) AS recovering