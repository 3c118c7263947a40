-- Whether the ledger was recovered from an older state, and nobody has said since that what it does not know is new.
SELECT unknown_signers_wait FROM ledger_recovery
