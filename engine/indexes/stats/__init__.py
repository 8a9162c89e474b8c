"""The statistics index: bounds and counts of columns, per file and per partition.

Input: the statistics of a task's files (from footers, or from rows as they are written). Output: evidence about files,
blocks of files, and partitions. `format.py` describes keys and values.

    rows.py          the rows of a commit
    build.py         the rows of existing files, from their footers
    expression.py    computes the statistics of an expression, when rows are written or from existing files
    aggregates.py    statistics of partitions, and how optimize tightens them
    purge.py         removes entries of removed files from an index and from task index files
    kind.py          the verbs of the kind, and its probes: which files and blocks of files may match
    reader.py        reads entries and blocks, and turns them into evidence
"""
