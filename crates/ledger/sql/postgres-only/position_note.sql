-- Tells the session how far the ledger is known to have been, for the view `ledger_current`.
-- $1 position
SELECT set_config('fencepost.position', $1::bigint::text, false)
