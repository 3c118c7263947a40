-- Waits for all transactions that write under a lease, or acquire one, and keeps others from it until the recovery is over: a
-- lease is either raised by it or begins above the floor.
LOCK TABLE lease IN EXCLUSIVE MODE
