"""One writer's share of a commit.

A task attaches files that others wrote (`attach.py`; those of a log, `log_attach.py`), takes what a caller declares of
files (`declared.py`), or writes rows as Parquet (`writer.py`, `written_file.py`; `dictionaries.py` chooses the columns
that get a dictionary), in this process or in an executor.
Out comes a `TaskResult` (`indexes/task_result.py`): small, picklable, in local ordinals, which the commit binds to ids.
`spec.py` is what a task is handed.
"""
