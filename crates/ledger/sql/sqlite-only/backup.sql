-- Copies all that is committed, as of one moment, into a file that is empty.
-- ?1 path, from the root on
VACUUM INTO ?1
