"""The secondary index: the rows that contain a value.

Input: the values of the key's columns with their rows. Output: for a predicate, the rows in which a part of it is TRUE.
`format.py` describes keys and values.

    kind.py          the verbs of the kind, the probe, and the choice between several indexes
    hits.py          the rows that a look-up found
    key_ranges.py    which part of a predicate a key can look up, as which ranges of keys
    reader.py        the look-up
    included.py      included columns, and rows that are read from entries
    build.py         keys of existing files
    sort.py          sorting in bounded memory; the keys of rows as they are written
"""
