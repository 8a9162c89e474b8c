"""The n-gram index: the blocks of rows in which a text may occur.

In: the texts of a column. Out: for a predicate, the rows outside of which a part of it is not TRUE. `format.py`
describes keys and values.

    kind.py      the verbs of a kind, and which parts of a predicate it can look up
    grams.py     which n-grams a text has, and the bucket of each
    kernels.py   compiled twin of a part of grams.py
    build.py     the grams of existing files, and of rows as they are written; a commit's runs
    probe.py     the look-up
"""
