-- A task's row is written anew for each of its stages. With room on its page that needs no entry in an index.
ALTER TABLE plan_task SET (fillfactor = 50);
-- No statement could use it: the events of one task are those of its plan, filtered.
DROP INDEX plan_event_task;
-- Every new nonce cost an entry here, and only the look for holds that ran out read it. That look now goes from signer to
-- signer along signer_nonce_held, some of them at a time; that of the last release reads all of signer_nonce_held meanwhile.
-- The last statement, since no nonce is granted from when it has its lock.
DROP INDEX signer_nonce_overdue;
