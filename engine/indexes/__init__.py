"""Indexes: what is known of the values in files.

`protocol.py` says what a kind of index must do: define, build, commit, merge, and answer questions about a predicate.
A kind is a folder whose `kind.py` does so; `protocol.py` lists their names, and loads one where it is first met.

    stats/       bounds and counts of columns, by file and by partition
    bloom/       filters: which files and row groups may hold a value
    secondary/   in which rows a value stands

Shared by the kinds: where columns lie in files (`columns.py`), what evidence says of a leaf of a predicate
(`outcomes.py`), sets of rows (`row_sets.py`), the task index file (`task_index.py`, `task_result.py`), runs in
geometric sizes (`geometric_runs.py`). Which files an index speaks for is kept by its callers alone
(`state/coverage.py`).
"""
