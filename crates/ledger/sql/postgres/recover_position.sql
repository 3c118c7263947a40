-- A ledger that went back goes on past every position that was seen of it, by so much that nobody takes it for looks.
UPDATE ledger_identity
SET position = greatest(position + 4294967296, (extract(epoch FROM clock_timestamp()) * 1000)::bigint << 20)
