-- Which ledger this is, and how far it has got.
SELECT cluster, position FROM ledger_identity
