"""The keys of secondary indexes that a writer's task gathers: one sorted run each, beside the task index file.

A task has no file ids: in its runs a file goes by the number under which it was begun, and the result tells which
ordinal that became. The commit binds both (`tasks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ....errors import InvalidArgumentError
from ....hfile_like.ordered import OrderedCode, ordered_class
from ...parquet.leaves import leaf_array
from ...storage import Storage
from .format import SecondaryForm, write_entries
from .sort import EntrySorter

_MEMORY_BYTES = 64 << 20


@dataclass(frozen=True)
class KeySpec:
    """A key that a task keeps: the columns' dotted paths, and the types that they are encoded as."""

    columns: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]


@dataclass
class KeyRun:
    """The entries of a task's files under one key.

    classes      of the values (`hfile_like.ordered.ordered_class`)
    numbers      of the task's files, by ordinal, as the run names them; None for a file that it holds nothing of
    path, size_bytes, entries    of the run; None, 0 and 0 where there are none
    """

    classes: tuple[str | None, ...]
    numbers: list[int | None] = field(default_factory=list)
    path: str | None = None
    size_bytes: int = 0
    entries: int = 0


class TaskKeys:
    """Gathers one key over all files of a task, in bounded memory."""

    def __init__(self, spec: KeySpec):
        self.spec = spec
        self._sorter = EntrySorter(OrderedCode(spec.kinds), _MEMORY_BYTES)
        self._lacking: set[int] = set()

    def add(self, number: int, row_group: int, first_row: int, rows: pa.Table) -> None:
        """The rows of a row group of file `number`. A file whose values are too large for keys is left out."""
        values = [leaf_array(rows, column) for column in self.spec.columns]
        try:
            self._sorter.add(number, row_group, first_row, values)
        except InvalidArgumentError:
            self._lacking.add(number)

    def finish(self, storage: Storage, path: str, numbers: Sequence[int]) -> KeyRun:
        """Writes the run to `path`, if it holds anything: durable on return. `numbers` of the task's files, by
        ordinal."""
        with self._sorter:
            entries = self._sorter.entries(self._lacking)
            runs = write_entries(storage, lambda _: path, entries, (0, 0), SecondaryForm(None))
        classes = tuple(ordered_class(kind) for kind in self.spec.kinds)
        kept = [None if number in self._lacking else number for number in numbers]
        return KeyRun(classes, kept, *((runs[0].path, runs[0].size_bytes, runs[0].entries) if runs else ()))

    def close(self) -> None:
        """Lets go of what was gathered."""
        self._sorter.close()
