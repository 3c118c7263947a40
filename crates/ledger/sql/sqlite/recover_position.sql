-- A ledger that went back goes on past every position that was seen of it.
UPDATE ledger_identity
SET position = max(position + 1, CAST(round(unixepoch('subsec') * 1000) AS INTEGER) << 20)
