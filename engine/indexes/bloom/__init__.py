"""The filter index: which files, and which of their row groups, may contain a value.

Input: the values of one column. Output: for a value, the files that may contain it (`coarse_groups.py`: one small read
covers many files) and the row groups of one file (`file_filter.py`). `format.py` describes the runs of both.

    kind.py            the verbs of the kind
    probe.py           the look-up in coarse filters
    task_filters.py    the filters of one file, in bounded memory, and their sizes
    build.py           filters of existing files
    merge.py           a commit's run, and merged runs
"""
