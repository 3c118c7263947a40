-- How the database keeps texts, and whether it has the tables of a ledger.
SELECT current_setting('server_encoding') AS encoding, to_regclass('signer_nonce_allocation') IS NOT NULL AS has_ledger
