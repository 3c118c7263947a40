-- Whether the ledger is as far as is known. Asked where nothing was granted.
SELECT is_current FROM ledger_current
