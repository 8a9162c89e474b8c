"""The statistics index: what columns span in each file, and over each partition.

`format.py` describes its keys and values, `rows.py` makes the rows of a commit, `build.py` those of files that are
there already, `reader.py` reads them, `aggregates.py` sums them up by partition, `kind.py` ties them together.
"""
