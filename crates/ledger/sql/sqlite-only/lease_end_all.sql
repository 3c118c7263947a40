-- Ends the leases that earlier processes left. The caller has locked the file, so those processes are dead. A tenant's
-- lock stays: a task owns it across restarts. (`;` follows `:` in the order of characters.)
UPDATE lease
SET owner = NULL, expires_at = {now}
WHERE owner IS NOT NULL AND NOT (resource > 'tenant:' AND resource < 'tenant;')
