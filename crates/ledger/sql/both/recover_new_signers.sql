-- From now on signers without a row are new. Writes nothing where they are already.
UPDATE ledger_recovery SET unknown_signers_wait = false WHERE unknown_signers_wait
