"""Building the n-gram index, of existing files and of rows as they are written.

A block of text is a bit per bucket while its rows pass. Entries wait in memory up to a bound; more are written to
temporary files, which are sorted runs, and `state/lsm.py` merges these.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ....errors import SchemaError, StorageError
from ....hfile_like import SortedFileReader
from ...parquet.footers import FILE_ERRORS
from ...parquet.leaves import leaf_array
from ...state import IndexState
from ...state.lsm import write_runs
from ...state.manifest import split_file_ids
from ...state.run_format import EntryBatch, SortedEntries
from ...state.runs import check_written_as
from ...storage import Ranged, Storage
from ...storage.threads import BUILD_THREADS, prefetched
from ..column_reader import ColumnReader
from ..kind import BuildContext, BuildResult, CommitContext
from ..task_result import IndexPart
from .format import BLOCKS_MAX, FORMAT, KEYS, NAME, RUN_SCHEMA, file_entries, ids_of_keys
from .grams import BLOCK_BYTES, VERSION, as_bytes, mark_grams

if TYPE_CHECKING:
    from ...handle import Handle

MEMORY_BYTES = 256 << 20
_COPIES = 3  # of entries, while they are sorted and encoded
_BLOCK_ROWS, _BLOCK_ROWS_MIN, _BLOCK_ROWS_MAX = 2048, 64, 8192
_BLOCK_TEXT_MIN, _BLOCK_TEXT_MAX = 64 << 10, 192 << 10  # bytes of text: blocks of less are larger, of more smaller


class FileGrams:
    """The grams of one file, whose rows are added in their order."""

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
        """Make one block of each two."""
        if len(self._bits) % 2:
            self._bits = np.concatenate([self._bits, np.zeros((1, BLOCK_BYTES), dtype=np.uint8)])
        self._bits, self._block_rows = self._bits[0::2] | self._bits[1::2], 2 * self._block_rows

    def entries(self, file_id: int) -> EntryBatch:
        """The entries of the file, whose rows were all added."""
        block_rows = self._block_rows or 1
        return file_entries(file_id, self._rows, block_rows, self._bits[: -(-self._rows // block_rows)])


def _block_rows(value_bytes: float) -> int:
    """How many rows a block has, by the mean size of their texts."""
    rows = _BLOCK_ROWS
    while rows > _BLOCK_ROWS_MIN and rows * value_bytes > _BLOCK_TEXT_MAX:
        rows //= 2
    while rows < _BLOCK_ROWS_MAX and rows * value_bytes < _BLOCK_TEXT_MIN:
        rows *= 2
    return rows


class EntrySorter:
    """Gathers the entries of files. Used as a context manager: temporary files are removed at its end."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES):
        self._memory_bytes, self._bytes = memory_bytes, 0
        self._waiting: list[EntryBatch] = []
        self._spilled: list[str] = []
        self._folder: str | None = None

    def __enter__(self) -> EntrySorter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._waiting, self._spilled = [], []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def add(self, entries: EntryBatch) -> None:
        """Add some entries."""
        self._waiting.append(entries)
        self._bytes += _COPIES * (entries.keys.nbytes + entries.values.nbytes)
        if self._bytes > self._memory_bytes:
            self._spill()

    def entries(self) -> EntryBatch | SortedEntries:
        """All entries, to be written before this is closed."""
        if not self._spilled:
            return EntryBatch.concat(self._waiting, RUN_SCHEMA)
        if self._waiting:
            self._spill()
        return SortedEntries([SortedFileReader(path) for path in self._spilled])

    def _spill(self) -> None:
        data = EntryBatch.concat(self._waiting, RUN_SCHEMA).encoded(FORMAT)
        try:
            if self._folder is None:
                self._folder = tempfile.mkdtemp(prefix="skipstone-")
            path = os.path.join(self._folder, str(len(self._spilled)))
            with open(path, "wb") as sink:
                sink.write(data)
        except OSError as error:
            message = f"grams wait on the disk, and what was written there ({error}); set TMPDIR to a folder with room"
            raise StorageError(message) from error
        self._spilled.append(path)
        self._waiting, self._bytes = [], 0


# -- existing files ---------------------------------------------------------------------------------------------------


def built_grams(handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> BuildResult:
    """A run with the grams of files that the index lacks."""
    column = handle.instant.path_of(index.columns[0])
    ids = files.column("file_id").to_pylist()
    left_out: list[int] = []
    reached = 0
    with EntrySorter() as sorter, closing(_built_files(handle, index, files)) as results:
        for ordinal, (file_id, built) in enumerate(results):
            if isinstance(built, Exception):
                left_out.append(file_id)
                warnings.warn(f"not indexed, and read by every scan until it is: {built}", stacklevel=7)
            else:
                sorter.add(built)
            reached = ordinal + 1
            job.tell(f"{NAME}({column})", reached, len(ids))
            if job.is_due:
                break
        path = job.path(handle.index_storage, f"n{index.columns[0]}")
        runs = write_runs(handle.index_storage, lambda _: path, sorter.entries(), (1, handle.version), FORMAT)
    return BuildResult(runs, left_out, ids[reached:])


def _built_files(handle: Handle, index: IndexState, files: pa.Table) -> Generator[tuple[int, EntryBatch | Exception]]:
    """Each file's entries, in order, a bounded number of files ahead."""
    reader = ColumnReader.of(handle.storage, handle.instant, index)
    rows = files.select(["file_id", "path", "size_bytes", "modified_ns", "etag", "schema_id"]).to_pylist()

    def read(row: dict[str, Any]) -> EntryBatch | Exception:
        grams = FileGrams(index.options["ignore_case"])
        try:
            with reader.open(row) as file:
                for group in range(len(file.row_counts)):
                    (values,) = file.read(group)
                    grams.add(values)
        except (*FILE_ERRORS, SchemaError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            return error
        return grams.entries(row["file_id"])

    built = prefetched(read, rows, BUILD_THREADS, "skipstone-build")
    yield from zip(files.column("file_id").to_pylist(), built, strict=True)


# -- the grams of a task ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GramPartSpec:
    """An index whose part a task builds: the column's dotted path, and whether case is ignored."""

    column: str
    ignore_case: bool

    def start(self) -> GramPartBuilder:
        return GramPartBuilder(self)


class GramPartBuilder:
    """Builds the grams of one column over all files of a task."""

    def __init__(self, spec: GramPartSpec):
        self._spec, self._sorter = spec, EntrySorter()
        self._open: dict[int, FileGrams] = {}
        self._ended: set[int] = set()

    def add(self, number: int, row_group: int, first_row: int, rows: pa.Table) -> None:
        grams = self._open.setdefault(number, FileGrams(self._spec.ignore_case))
        grams.add(leaf_array(rows, self._spec.column))

    def end_file(self, number: int) -> None:
        grams = self._open.pop(number, None) or FileGrams(self._spec.ignore_case)
        self._sorter.add(grams.entries(number))
        self._ended.add(number)

    def finish(self, storage: Storage, path: str, numbers: Sequence[int]) -> IndexPart:
        for number in set(numbers) - self._ended:
            self.end_file(number)
        with self._sorter:
            runs = write_runs(storage, lambda _: path, self._sorter.entries(), (0, 0), FORMAT)
        encoding = encoding_of(self._spec.ignore_case)
        return IndexPart(NAME, (self._spec.column,), encoding, tuple(numbers), runs[0] if runs else None)

    def close(self) -> None:
        self._sorter.close()


def encoding_of(ignore_case: bool) -> tuple[str | None, ...]:
    """How the parts of an index are encoded."""
    return (f"{VERSION}{' ignore case' if ignore_case else ''}",)


def committed_grams(index: IndexState, work: CommitContext) -> IndexState:
    """The index with the grams of the parts that a commit's tasks built. Files without grams are holes."""
    found = work.parts_of(index, encoding_of(index.options["ignore_case"]))
    if found is None:
        return index
    parts, holes = found
    with EntrySorter() as sorter:
        for part, ids in parts:
            _add_part(sorter, work.writing.storage, part, ids)
        runs = work.writing.append(index.runs, sorter.entries(), work.version, f"n{index.id}", FORMAT)
    return replace(index, runs=runs, coverage=index.coverage.with_segment(work.version, holes))


def _add_part(sorter: EntrySorter, storage: Storage, part: IndexPart, ids: np.ndarray) -> None:
    """Add the entries of a part, with file ids instead of the task's numbers."""
    if part.run is None:
        return
    with SortedFileReader(Ranged(storage, part.run.path, part.run.size_bytes)) as reader:
        check_written_as(reader, part.run.path)
        for batch in reader.scan(columns=RUN_SCHEMA.names):
            groups, numbers = KEYS.decode(batch.column(0))["group"], ids_of_keys(batch.column(0))
            partition, sequence = split_file_ids(part.ids_of(numbers, ids))
            keys = KEYS.encode(group=groups, partition=partition, sequence=sequence)
            values = pa.Table.from_batches([batch.select(RUN_SCHEMA.names)])
            sorter.add(EntryBatch(keys, values, np.zeros(len(keys), dtype=bool)))
