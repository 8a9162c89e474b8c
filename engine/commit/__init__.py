"""Commits: everything that makes a new version.

transaction.py, distributed.py   gather tasks; all of it becomes one version, or nothing
bind.py, schemas.py              local ordinals become ids, names in files become columns of the table
publish.py                       runs are written, then the instant is put if nobody was first; else bind again
sync.py, sync_log.py, follow.py  follow a directory, or the log of another format
alter.py, undoing.py, savepoints.py, indexing.py, optimize.py, clean.py   one verb each
slice_conflicts.py, overwriting.py   what counts as a conflict
"""
