"""The statistics index: what columns span in each file, and over each partition.

In come the statistics of a task's files (from footers, or from rows that were written); out comes evidence by file,
block and partition. `format.py` describes keys and values.

    rows.py              the rows of a commit
    build.py             those of files that are there, from their footers
    restored_files.py    those of files that come back with a restore or a rollback
    merge.py             what optimize drops and tightens
    aggregates.py        sums over partitions
    reader.py            reads them, whole blocks first
"""
