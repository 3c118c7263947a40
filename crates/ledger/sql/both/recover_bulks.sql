-- Ends every bulk operation under way, and raises its token past those that were given since. None goes on by itself: it may have
-- been what the older state was restored for.
-- $1 by how much
UPDATE bulk
SET token = token + $1, status = 'FAILED', finished_at = {now}, page = NULL,
    error = 'the ledger was recovered from an older state; look at the jobs, and begin the operation anew'
WHERE finished_at IS NULL
