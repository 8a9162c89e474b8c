"""One writer's share of a commit.

A task attaches existing files (`attach.py`; files of a log, `log_attach.py`), accepts what a caller declares about
files (`declared.py`), or writes rows as Parquet (`writer.py`, `written_file.py`), in this process or in an executor.
It returns a `TaskResult` (`indexes/task_result.py`): small, picklable, in local ordinals that the commit binds to ids.
`spec.py` is the input of a task.
"""
