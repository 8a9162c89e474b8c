"""Reading Parquet files, without knowledge of indexes and versions.

Files are opened by path and identity. The functions return schemas, statistics and rows. For a damaged or hostile file
they raise a CorruptionError with the path, into which `footers.py` turns the errors of pyarrow.

    footers.py         opening files; a footer's schema, row groups and statistics; rows of a row group
    packed_footer.py   a footer in the form in which an index stores it
    footer_bytes.py    the check of a footer, and its row groups, before pyarrow reads a column chunk
    kernels_footer.py  compiled twin of a part of footer_bytes.py
    leaves.py          the leaves of a schema, and of rows; fields within columns whose names differ between files
    column_stats.py    statistics of one column: computed, combined, stored
    exact_cast.py      casts to the table's types without loss
    thrift.py          the protocol of footers
"""
