-- Whether the ledger is as far as is known. Asked where nothing was granted.
SELECT ledger_is_current()
