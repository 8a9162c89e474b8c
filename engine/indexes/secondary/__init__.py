"""The secondary index: in which rows a value stands.

In come the values of the key's columns with their rows; out come, for a predicate, the rows in which a part of it is
TRUE. `format.py` describes keys and values.

    task_keys.py    keys of rows that are written
    build.py        keys of files that are there; `sort.py` sorts in bounded memory
    merge.py        a commit's runs from its tasks' keys, and runs merged
    questions.py    which index is asked about a predicate, and for which key ranges
    reader.py       the look-up
"""
