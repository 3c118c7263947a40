-- Copies all that is committed, as of one moment, into a file that is empty.
-- ?1 path
VACUUM INTO ?1
