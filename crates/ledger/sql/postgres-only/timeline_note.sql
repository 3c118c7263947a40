-- Tells the session its server's timeline. From then on its statements tell the marks of their transactions. Some servers, such as
-- managed ones, refuse to name a place in the log, and fail each statement that asks for one.
-- $1 timeline
SELECT set_config('fencepost.timeline', $1::bigint::text, false)
