-- No signer grants until its next nonce was confirmed: nobody here knows which nonces were granted since.
UPDATE signer SET recovering = true
