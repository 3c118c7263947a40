-- Jobs that wait are found by all that they require: those that no node serves stand before no others. The index of the last
-- release stays, by which its instances read their pages.
CREATE INDEX job_waiting_group
    ON job (lane, (pool || '/' || tenant || '/' || requires || '/' || coalesce(route_source || ':' || route_target, '')), priority DESC, seq, id)
    WHERE node IS NULL AND due_at IS NULL;
