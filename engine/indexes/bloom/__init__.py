"""The filter index: which files, and which of their row groups, may hold a value.

In come the values of one column; out come, for a value, the files that may hold it (`coarse.py`: all files of many
tasks by one small read) and the row groups of one file (`file_filter.py`). `format.py` describes the runs of both.

    task_filters.py    filters of rows that are written, in bounded memory; `sizing.py` decides how large they are
    build.py           filters of files that are there, from their values or (`from_parquet.py`) their own filters
    merge.py           a commit's run, and runs merged (`joining.py`)
    probe.py           the look-up; `hashed_values.py` says what was hashed, and how to ask it
"""
