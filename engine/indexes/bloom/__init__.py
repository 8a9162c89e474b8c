"""The filter index: which files, and which of their row groups, may hold a value.

The coarse level (`coarse.py`) answers for all files of many tasks with one small read; the fine level
(`file_filter.py`) for the row groups of one file. `filters.py` describes both. `task_filters.py` makes filters while
rows are written, `build.py` from files that are there, `merge.py` joins runs, `probe.py` asks them.
"""
