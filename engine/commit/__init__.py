"""Commits: everything that makes a new version.

transaction.py, distributed.py   gather what tasks wrote; all of it becomes one version, or nothing
bind.py, schemas.py              local ordinals become ids, names in files become columns of the table
publish.py, queue.py             runs are written, then the instant is put if nobody was first, else bound again
conflicts.py, files_by_id.py     what counts as a conflict; many files that go, in columns
sync.py, adopt_columns.py        follow a directory; columns that files hold and the table did not read
sync_log.py, follow_log.py       follow the log of another format
moved_files.py, elsewhere.py     a lake that was copied or moved: bound again, or read as it stands
lookahead.py                     what a commit far away reads while its data are on their way
alter.py, undo.py, indexing.py, clean.py, repair.py   the other verbs

In: results of tasks (`indexes/task_result.py`) and a handle on a version. Out: the next instant, and the runs it names.
Begin at `publish.py`: a `Change` says what a verb wants, `publish` makes a version of it.
"""
