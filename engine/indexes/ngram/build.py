"""Build the n-gram index of existing files, and of rows as they are written.

A block of text is one bit per bucket while its rows pass. `entry_sorting.py` sorts the entries of files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...parquet.leaves import leaf_array
from ...state import IndexState
from ...state.lsm import write_runs
from ...state.manifest import split_file_ids
from ...state.run_format import EntryBatch
from ...storage import Storage
from ..column_reader import ColumnReader, each_file, file_rows
from ..entry_sorting import EntrySorter, with_parts
from ..kind import BuildContext, BuildResult, CommitContext, PartSpec
from ..task_result import IndexPart
from .format import BLOCKS_MAX, FORMAT, KEYS, NAME, RUN_SCHEMA, file_entries, ids_of_keys
from .grams import BLOCK_BYTES, VERSION, as_bytes, mark_grams

if TYPE_CHECKING:
    from ...handle import Handle

MEMORY_BYTES = 85 << 20  # of entries; sorting and encoding needs three copies of them
_BLOCK_ROWS, _BLOCK_ROWS_MIN, _BLOCK_ROWS_MAX = 2048, 64, 8192
_BLOCK_TEXT_MIN, _BLOCK_TEXT_MAX = 64 << 10, 192 << 10  # bytes of text per block, if rows allow it


class FileGrams:
    """The grams of one file, whose rows are added in order."""

    def __init__(self, ignore_case: bool):
        self._ignore_case = ignore_case
        self._rows, self._block_rows = 0, 0
        self._bits = np.zeros((0, BLOCK_BYTES), dtype=np.uint8)

    def add(self, values: pa.Array) -> None:
        """Add the texts of the next rows."""
        if not len(values):
            return
        texts = as_bytes(values, self._ignore_case)
        self._block_rows = self._block_rows or _block_rows(texts.nbytes / len(texts))
        stop = self._rows + len(texts)
        while -(-stop // self._block_rows) > BLOCKS_MAX:
            self._join_blocks()
        missing = -(-stop // self._block_rows) - len(self._bits)
        if missing > 0:
            grown = max(missing, min(len(self._bits), BLOCKS_MAX - len(self._bits)))
            self._bits = np.concatenate([self._bits, np.zeros((grown, BLOCK_BYTES), dtype=np.uint8)])
        mark_grams(texts, self._rows, self._block_rows, self._ignore_case, self._bits)
        self._rows = stop

    def _join_blocks(self) -> None:
        """Join each two blocks into one."""
        if len(self._bits) % 2:
            self._bits = np.concatenate([self._bits, np.zeros((1, BLOCK_BYTES), dtype=np.uint8)])
        self._bits, self._block_rows = self._bits[0::2] | self._bits[1::2], 2 * self._block_rows

    def entries(self, file_id: int) -> EntryBatch:
        """Return the entries of the file, after all rows were added."""
        block_rows = self._block_rows or 1
        return file_entries(file_id, self._rows, block_rows, self._bits[: -(-self._rows // block_rows)])


def _block_rows(value_bytes: float) -> int:
    """Return the number of rows per block for texts of this mean size."""
    rows = _BLOCK_ROWS
    while rows > _BLOCK_ROWS_MIN and rows * value_bytes > _BLOCK_TEXT_MAX:
        rows //= 2
    while rows < _BLOCK_ROWS_MAX and rows * value_bytes < _BLOCK_TEXT_MIN:
        rows *= 2
    return rows


# -- existing files ---------------------------------------------------------------------------------------------------


def built_grams(handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> BuildResult:
    """Build a run with the grams of files that the index lacks."""
    column = handle.instant.path_of(index.columns[0])
    reader = ColumnReader.of(handle.storage, handle.instant, index)

    def read(row: dict[str, Any]) -> EntryBatch:
        grams = FileGrams(index.options["ignore_case"])
        with reader.open(row) as file:
            for group in range(len(file.row_counts)):
                (values,) = file.read(group)
                grams.add(values)
        return grams.entries(row["file_id"])

    with _sorter() as sorter:
        unreadable_ids, remaining_ids = each_file(
            file_rows(files), job, f"{NAME}({column})", read, lambda _, entries: sorter.add_entries(entries)
        )
        path = job.path(handle.index_storage, f"n{index.columns[0]}")
        runs = write_runs(handle.index_storage, lambda _: path, sorter.sorted(), (1, handle.version), FORMAT)
    return BuildResult(runs, unreadable_ids, remaining_ids)


# -- the grams of a task ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GramPartSpec(PartSpec):
    """An index whose part a task builds: the column's dotted path, and a flag to ignore case."""

    column: str
    ignore_case: bool

    def start(self) -> GramPartBuilder:
        return GramPartBuilder(self)


class GramPartBuilder:
    """Builds the grams of one column over all files of a task."""

    def __init__(self, spec: GramPartSpec):
        self._spec, self._sorter = spec, _sorter()
        self._open: dict[int, FileGrams] = {}
        self._ended: set[int] = set()

    def add(self, number: int, row_group: int, first_row: int, rows: pa.Table) -> None:
        grams = self._open.setdefault(number, FileGrams(self._spec.ignore_case))
        grams.add(leaf_array(rows, self._spec.column))

    def end_file(self, number: int) -> None:
        grams = self._open.pop(number, None) or FileGrams(self._spec.ignore_case)
        self._sorter.add_entries(grams.entries(number))
        self._ended.add(number)

    def finish(self, storage: Storage, path: str, numbers: Sequence[int]) -> IndexPart:
        for number in set(numbers) - self._ended:
            self.end_file(number)
        with self._sorter:
            runs = write_runs(storage, lambda _: path, self._sorter.sorted(), (0, 0), FORMAT)
        encoding = encoding_of(self._spec.ignore_case)
        return IndexPart(NAME, (self._spec.column,), encoding, tuple(numbers), runs[0] if runs else None)

    def close(self) -> None:
        self._sorter.close()


def encoding_of(ignore_case: bool) -> tuple[str | None, ...]:
    """Return the encoding of the parts of an index."""
    return (f"{VERSION}{' ignore case' if ignore_case else ''}",)


def committed_grams(index: IndexState, work: CommitContext) -> IndexState:
    """Return the index with the grams of the parts that a commit's tasks built."""
    return with_parts(index, work, encoding_of(index.options["ignore_case"]), FORMAT, _sorter(), _of_files)


def _of_files(keys: pa.BinaryArray, ids_of: Callable[[np.ndarray], np.ndarray]) -> pa.BinaryArray:
    partition, sequence = split_file_ids(ids_of(ids_of_keys(keys)))
    return KEYS.encode(group=KEYS.decode(keys)["group"], partition=partition, sequence=sequence)


def _sorter() -> EntrySorter:
    return EntrySorter(FORMAT, RUN_SCHEMA, MEMORY_BYTES)
