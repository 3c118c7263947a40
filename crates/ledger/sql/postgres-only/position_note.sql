-- Tells the session how far the ledger is known to have been, for `ledger_is_current`.
-- $1 position
SELECT set_config('fencepost.position', $1::bigint::text, false)
