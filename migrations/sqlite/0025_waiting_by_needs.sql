-- Jobs that wait are found by all that they require: those that no node serves stand before no others. A row without
-- requirements has two empty texts more in its entry.
DROP INDEX job_waiting;
CREATE INDEX job_waiting
    ON job (lane, pool, tenant, requires, coalesce(route_source || ':' || route_target, ''), priority DESC, seq, id)
    WHERE node IS NULL AND due_at IS NULL;
