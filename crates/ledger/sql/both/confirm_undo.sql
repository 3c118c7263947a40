-- Takes nonces back that an unfinished confirmation has added: those from $2 on, down to the last one that it has not. Nobody was
-- granted them. What an earlier confirmation added has a token from before the last recovery. Reads what there is from $2 on.
-- $1 signer, $2 from
DELETE FROM signer_nonce_allocation
WHERE signer = $1 AND nonce >= $2 AND nonce > coalesce((
    SELECT nonce FROM signer_nonce_allocation
    WHERE signer = $1 AND nonce >= $2
      AND NOT (status = 'CONSUMED' AND owner = 'recover' AND tx_hash IS NULL
               AND fencing_token > (SELECT token_floor FROM ledger_recovery))
    ORDER BY nonce DESC
    LIMIT 1
), -1)
