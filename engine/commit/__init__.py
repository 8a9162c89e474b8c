"""Commits: everything that creates a version.

transaction.py, distributed.py   gather what tasks wrote; all of it becomes one version, or nothing
commit.py, queue.py              the one optimistic loop, and the order of commits that lost a race
edit.py, bind.py, schemas.py     what a verb changes in the newest version; ids of files, columns of the table
conflicts.py                     what counts as a conflict
sync.py, adopt_columns.py        follow a directory; columns that files hold and the table did not read
sync_log.py, follow_log.py       follow the log of another format
alter.py, restore.py, indexing.py, clean.py, purge.py   the other verbs

In: results of tasks (`indexes/task_result.py`) and a handle on a version. Out: the next instant, and the runs it names.
Begin at `commit.py`: a verb calls `commit` with a plan, which returns an `Edit` of the newest version.
"""
