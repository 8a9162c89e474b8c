"""Where live files come from.

`directory.py` lists a directory. `log.py` says what the log of another table format must answer: its latest state, the
files that are live in a state, what changed since another, the rows that deletes take out. `delta.py` and `iceberg.py`
answer it, each through the format's own library. A new format is one more file here and a line in `sources.py`.
Nothing in this room writes.
"""
