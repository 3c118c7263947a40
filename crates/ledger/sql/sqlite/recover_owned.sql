-- Open sessions and unfinished plans that had no owner yet may have had their first one since: each gets a free lease, so that
-- nobody takes its next owner for its first, nor the next token for a new one. Sent after recover_floor.
INSERT INTO lease (resource, owner, fencing_token, acquired_at, renewed_at, expires_at)
SELECT resource, NULL, token_floor, at, at, at
FROM (
    SELECT 'session:' || session AS resource FROM session WHERE closed_at IS NULL
    UNION ALL
    SELECT 'plan:' || id FROM plan WHERE finished_at IS NULL
), ledger_recovery, (SELECT {now} AS at)
WHERE true
ON CONFLICT DO NOTHING
