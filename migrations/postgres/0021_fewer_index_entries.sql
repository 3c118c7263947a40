-- Every new nonce cost an entry here, and only the look for holds that ran out read it. That look now goes from signer to
-- signer along signer_nonce_held, some of them at a time.
DROP INDEX signer_nonce_overdue;
-- No statement could use it: the events of one task are those of its plan, filtered.
DROP INDEX plan_event_task;
-- A task's row is written anew for each of its stages. With room on its page that needs no entry in an index.
ALTER TABLE plan_task SET (fillfactor = 50);
