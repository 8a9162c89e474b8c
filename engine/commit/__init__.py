"""Commits: everything that creates a version.

transaction.py, distributed.py   collect what tasks wrote; all of it becomes one version, or nothing
commit.py, queue.py              the one optimistic loop, and the order of commits that lost a race
edit.py, schemas.py              what a verb changes in the newest version; file ids and the table's columns
conflicts.py                     what counts as a conflict
sync.py, follow_log.py           follow a directory, or the log of another format
adopt_columns.py                 adopt columns that files contain and the table does not read yet
alter.py, restore.py, indexing.py, clean.py, purge.py   the other verbs

Input: results of tasks (`indexes/task_result.py`) and a handle on a version. Output: the next instant, and the runs
that it names. Start reading at `commit.py`: a verb calls `commit` with a plan, which returns an `Edit` of a version.
"""
