-- From now on statements of this session tell the marks of their transactions. Some servers, such as managed ones, refuse to
-- name a place in the log, and fail each statement that asks for one.
SELECT set_config('fencepost.marks', 'on', false)
