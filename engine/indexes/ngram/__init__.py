"""The n-gram index: the blocks of rows in which a text may occur.

Input: the texts of a column. Output: for a part of a predicate, rows; the part is not TRUE in any other row.
`format.py` describes keys and values.

    kind.py      the verbs of the kind, and which parts of a predicate it can look up
    grams.py     the n-grams of a text, and the bucket of each
    kernels.py   compiled twin of a part of grams.py
    build.py     the grams of existing files, and of rows as they are written; a commit's runs
    probe.py     the look-up
"""
