-- A statement of this transaction may write every row of a table.
SET LOCAL statement_timeout = 0
