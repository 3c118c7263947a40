-- As ledger_is_current(), which instances of the last release still ask: as a view it becomes part of the plan of each statement
-- that asks, where the body of a function is parsed and planned anew by each of them.
CREATE VIEW ledger_current AS
SELECT position >= coalesce(nullif(current_setting('fencepost.position', true), ''), '0')::bigint AS is_current
FROM ledger_identity;
