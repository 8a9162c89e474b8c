"""Where live files come from. Nothing in this room writes.

`directory.py` lists a directory; `detection.py` finds out which format a directory belongs to. `log.py` says what the
log of another table format must answer (`LogSource`, `LogState`): its latest state, the files that are live in it, what
changed since another, the rows that deletes take out. `delta.py` and `iceberg.py` answer it through each format's own
library. A new format is one file here, which `log_files.py` helps to write, and one line in `sources.py`.
"""
