"""Hudi tables: live files from the timeline.

`timeline.py` reads which instants are completed and which files they wrote. `view.py` is the file-system view: the
latest slice of each file group at a state of the timeline. `log_blocks.py` reads the kinds of a log file's blocks, but
not their rows. `rows.py` merges slices with the package `hudi`. `columns.py` converts the Avro schema of a commit.
`source.py` implements `LogSource`.
"""
