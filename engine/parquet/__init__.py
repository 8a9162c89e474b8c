"""Parquet's own bytes. No index and no version is known here.

In come files by path and identity; out come schemas, statistics and rows, or a CorruptionError that names the file:
whatever pyarrow raises for a damaged or hostile file becomes one in `footers.py` (`open_parquet`, `reading`).

    footers.py         opening files; a footer's schema, row groups and statistics
    packed_footer.py    a footer as an index keeps it
    footer_bytes.py    the row groups as a footer's bytes have them: pyarrow is asked for none that contradicts itself
    leaves.py          the leaves of a schema, and of rows; fields within columns that files name otherwise
    column_stats.py    statistics of one column: computed, combined, stored
    exact_cast.py      rows in the table's types, where nothing is lost
    few_rows.py        some rows of a row group by position
    digests.py         digests of files, by which a copy is known
    thrift.py          the protocol of footers
"""
