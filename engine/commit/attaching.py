"""Attaching what a listing found, however much it is: a task after the other, so that what is gathered file by file is
never more than one task's, and the rest stands in columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from ..indexes.task_result import TaskResult
from ..lakes.directory import entries_of
from ..progress import Progress
from ..state.leftovers import Leftovers
from ..storage import Storage
from ..tasks.attach import Leaves, attach_files

TASK_FILES = 1 << 14


class Attacher(Protocol):
    """Whoever attaches a listing, as `attach_all` does."""

    def __call__(
        self,
        storage: Storage,
        index_storage: Storage,
        transaction: str,
        listed: pa.Table,
        leftovers: Leftovers,
        *,
        hive_partitioned: bool,
        columns: Sequence[str] | None,
        keep_pending: bool,
        progress: Progress | None = None,
    ) -> tuple[list[TaskResult], tuple[dict, ...]]: ...


def attach_all(
    storage: Storage,
    index_storage: Storage,
    transaction: str,
    listed: pa.Table,
    leftovers: Leftovers,
    *,
    hive_partitioned: bool,
    columns: Leaves,
    keep_pending: bool,
    progress: Progress | None = None,
    part: str = "attached",
) -> tuple[list[TaskResult], tuple[dict, ...]]:
    """(the files of a listing, as `attach_files` attaches them, `TASK_FILES` a task; those that are pending).

    Every task index file stands in `leftovers` before it is begun, with `part` in its name.
    `progress("footers", read, of all)`.
    """
    results: list[TaskResult] = []
    pending: list[dict] = []
    for start in range(0, listed.num_rows, TASK_FILES):
        path = f"tasks/{transaction[:2]}/{transaction}-{part}-{start // TASK_FILES}.sbf"
        leftovers.add(index_storage, path)
        result = attach_files(
            storage,
            index_storage,
            path,
            list(entries_of(listed.slice(start, TASK_FILES))),
            hive_partitioned=hive_partitioned,
            columns=columns,
            keep_pending=keep_pending,
            progress=_of_all(progress, start, listed.num_rows),
        )
        pending += result.pending
        if result.files.num_rows:
            results.append(result)
        else:
            index_storage.delete(path)
    return results, tuple(pending)


def _of_all(progress: Progress | None, before: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda step, done, _: progress(step, before + done, total)
