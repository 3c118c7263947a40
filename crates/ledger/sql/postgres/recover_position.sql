-- A ledger that went back goes on past every position that was seen of it.
UPDATE ledger_identity
SET position = greatest(position + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 20)
