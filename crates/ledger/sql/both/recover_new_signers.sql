-- From now on signers without a row are new.
UPDATE ledger_recovery SET unknown_signers_wait = false
