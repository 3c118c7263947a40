-- Dead jobs are found without those that were dismissed, which stay for as long as their retention says. The index of the last
-- release stays, by which its instances list what they call dead.
CREATE INDEX job_finished_undismissed ON job_finished (id)
    WHERE outcome IN ('failed', 'timed_out') AND retried_as IS NULL AND dismissed_at IS NULL;
