-- Ends every lease, and raises its token past those that were given since, and to the floor. Sent after recover_floor.
-- ?1 by how much at least
UPDATE lease
SET fencing_token = max(fencing_token + ?1, (SELECT token_floor FROM ledger_recovery)), owner = NULL,
    expires_at = {now}
