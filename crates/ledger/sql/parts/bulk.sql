-- The columns of a bulk operation. They are named, since * would have those of a later release's migration, too.
id, principal, action, filter, before, rate, status, matched, done, skipped, failed, error, created_at, finished_at, owner, token,
page, body_hash, behind
