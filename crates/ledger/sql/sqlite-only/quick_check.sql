-- The first thing that is wrong with the file, or `ok`.
PRAGMA quick_check(1)
