"""A table whose files are only told of, with filters that are real: what a driver reads of them needs no data.

Each file is a task of its own, as a file that a writer made alone, with the filters that the writer would have left.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import skipstone as ss
from skipstone.bloom import SplitBlockFilter, hash_array, solve_blocks
from skipstone.engine.indexes.bloom.file_filter import FileFilter
from skipstone.engine.indexes.task_result import TaskIndex, TaskResult
from skipstone.engine.tasks.declared import declared_files
from skipstone.hfile_like import SortedFileWriter, StridedSection

COLUMN = "id"
SCHEMA = pa.schema([(COLUMN, pa.int64())])
FPP = 0.01


def created(folder: Path | str) -> ss.Table:
    """An empty table with a filter index."""
    table = ss.create(folder, schema=SCHEMA)
    table.create_index(COLUMN, kind="bloom", fpp=FPP)
    return table


def commit_tasks(table: ss.Table, tasks: Sequence[Sequence[np.ndarray]], blocks: int | None = None) -> None:
    """One commit of tasks: for each, the keys (int64, distinct) of each of its row groups. `blocks`: the size of every
    task's filter, whatever its keys need; None: what they need."""
    with table.transaction() as tx:
        path = f"tasks/{tx.id[:2]}/{tx.id}-made.sbf"
        sections: list[tuple[StridedSection, StridedSection]] = []
        name = "int"
        with (
            table.handle.index_storage.create(path) as sink,
            SortedFileWriter(sink, schema=pa.schema([("nothing", pa.bool_())])) as writer,
        ):
            for number, groups in enumerate(tasks):
                hashed = [hash_array(pa.array(keys)) for keys in groups]
                name = hashed[0].name
                each = [one.hashes for one in hashed]
                least = solve_blocks(max(map(len, each)), FPP)
                words = [SplitBlockFilter.build_from_hashes(one, least, name).words for one in each]
                fine = np.stack(words, axis=1).reshape(least, -1).view(np.uint8)
                every = np.concatenate(each)
                size = blocks or solve_blocks(len(every), FPP)
                whole = SplitBlockFilter.build_from_hashes(every, size, name).words
                rows = np.ascontiguousarray(whole).view(np.uint8).reshape(size, 32)
                sections.append(
                    (
                        writer.write_strided(f"fine/{number}", fine, fine.shape[1]),
                        writer.write_strided(f"task/{number}", rows, 32),
                    )
                )
        for number, (fine_section, task_section) in enumerate(sections):
            declared = pa.table(
                {"path": [f"{tx.id}-{number}.parquet"], "size_bytes": [1 << 26], "row_count": [1 << 20]}
            )
            result: TaskResult = declared_files(declared, table.schema, [], False, table.handle.storage)
            result.index = TaskIndex(
                path,
                np.zeros((1, 2), dtype=np.int64),
                {COLUMN: [FileFilter((fine_section,), name)]},
                {COLUMN: task_section},
            )
            tx.add_task([result])


def keys_of(task: int, count: int) -> np.ndarray:
    """The keys of a task: random, so that bounds tell no file from another."""
    return np.random.default_rng([23, task]).integers(0, 1 << 62, count)
