"""The secondary index: the rows that hold a value.

In: the values of the key's columns with their rows. Out: for a predicate, the rows in which a part of it is TRUE.
`format.py` describes keys and values.

    kind.py          the verbs of a kind, the probe, and which of several indexes a predicate asks
    hits.py          the rows that a look-up found
    key_ranges.py    which part of a predicate a key can look up, as which ranges of keys
    reader.py        the look-up
    included.py      included columns, and rows that are made of entries
    build.py         keys of existing files
    copies.py        entries of files that are written again with the same rows
    sort.py          sorting in bounded memory; the keys of rows as they are written
"""
