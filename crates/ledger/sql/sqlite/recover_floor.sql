-- Raises the floor of tokens past those that were given since, also if the same state is recovered a second time: no lease is
-- acquired once a millisecond. From now on signers without a row wait for their next nonce.
-- ?1 by how much at least
UPDATE ledger_recovery
SET token_floor = max(token_floor + ?1, {now_ms}),
    unknown_signers_wait = true
