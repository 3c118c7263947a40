-- No statement could use it: the events of one task are those of its plan, filtered.
DROP INDEX plan_event_task;
-- signer_nonce_overdue stays for as long as the last release may come back to these tables: one of its statements names it.
