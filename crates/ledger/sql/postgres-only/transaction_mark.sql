-- Of a transaction whose statements have not told its mark.
SELECT {mark}
