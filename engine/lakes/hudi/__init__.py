"""Hudi tables: their live files by their timeline, beside Hudi's own reader.

`timeline.py` reads which instants are completed, and what they wrote. `view.py` is the file-system view: the latest
slice of each file group at a state of the timeline. `log_blocks.py` reads of which kind the blocks of a log file are,
never their rows. `metadata_table.py` reads statistics of logs from Hudi's own metadata table. `columns.py` turns the
Avro schema of a commit into columns. `source.py` answers as a `LogSource`.
"""
