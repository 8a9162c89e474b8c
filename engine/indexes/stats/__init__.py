"""The statistics index: what columns span in each file, and over each partition.

In: the statistics of a task's files (from footers, or from rows as they are written). Out: evidence about files, blocks
of files, and partitions. `format.py` describes keys and values.

    rows.py          the rows of a commit
    build.py         those of existing files, from their footers
    expression.py    computes those of an expression, when rows are written or from existing files
    aggregates.py    statistics of partitions, and how optimize tightens them
    purge.py         what a purge leaves of an index, and of task index files
    kind.py          the verbs of a kind, and its probes: which files and blocks of files may match
    reader.py        reads entries and blocks, and makes evidence of them
"""
