"""Changes rows by predicate or by key: delete, update, upsert.

Copy-on-write: the index finds the files that contain the rows, each of these files is written again with its rows
changed, and one commit exchanges the files. All other files stay as they are.

    edits      what happens to the rows of one file: rows go, get new values, or are replaced by rows of a source
    rewrite    writes files again with their rows edited; Spark's executors run it, too
    exchange   the commit that exchanges files: ours, or that of the library of a log
    iceberg    the commit to an Iceberg table, through pyiceberg
    delta      the commit to a Delta table, through deltalake
    verbs      delete, update and upsert in this process
"""
