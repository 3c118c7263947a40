-- Nothing more is written to a day's partition until the transaction ends. The capitals stand for its number.
LOCK TABLE job_finished_DAY IN SHARE ROW EXCLUSIVE MODE
