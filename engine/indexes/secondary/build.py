"""Build a secondary index over existing files, from their key columns and included columns, in bounded memory."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ....base.arrays import combine
from ....base.ordered_keys import OrderedCode, ordered_class
from ....errors import InvalidArgumentError, SchemaError
from ...parquet.exact_cast import cast_exactly
from ...parquet.footers import FILE_ERRORS
from ...parquet.leaves import plain_type
from ...predicates.coerce import is_list
from ...progress import Progress
from ...state import Run
from ...state.lsm import write_runs
from ...state.run_format import SHARD_BYTES, RunFormat
from ...storage import Storage
from ...storage.threads import BUILD_THREADS, prefetched
from ..column_reader import ColumnReader
from .format import PLAIN, EntryLayout, GroupValues
from .sort import MEMORY_BYTES, ValueSorter

FILE_COLUMNS = ["file_id", "path", "size_bytes", "modified_ns", "etag", "schema_id", "row_count", "row_groups"]
_MEMORY_MAX, _MEMORY_SHARE = 1 << 30, 16
_TASK_ROWS = 1 << 19  # a larger file is read in parts, because several are read at a time, each whole


def build_runs(
    reader: ColumnReader,
    kinds: Sequence[pa.DataType],
    index_storage: Storage,
    files: pa.Table,
    path_of: Callable[[int], str],
    segments: tuple[int, int],
    form: RunFormat,
    *,
    name: str = "secondary",
    progress: Progress | None = None,
    memory_bytes: int = MEMORY_BYTES,
    layout: EntryLayout = PLAIN,
) -> tuple[tuple[Run, ...], list[int]]:
    """Build one run over base files, in shards. Return it, and the ids of files that could not be read.

    reader     of the columns of the key, then of the included columns
    kinds      the types as which the columns of the key are encoded
    files      rows of the manifest: FILE_COLUMNS
    path_of    returns the path of a shard
    name       of the step, for `progress`, which counts files
    """
    holes: dict[int, None] = {}
    done = 0
    with (
        ValueSorter(OrderedCode(kinds), memory_bytes, layout=layout) as sorter,
        contextlib.closing(_read(reader, kinds, files, sorter)) as parts,
    ):
        for part, groups in parts:
            if isinstance(groups, Exception):
                if part.file_id not in holes:
                    holes[part.file_id] = None
                    warnings.warn(f"not indexed, and read by every scan until it is: {groups}", stacklevel=4)
            else:
                for group in groups:
                    sorter.add_group(group)
            if part.is_last:
                done += 1
                if progress:
                    progress(name, done, files.num_rows)
        runs = write_runs(
            index_storage, path_of, sorter.sorted_ranges(holes, form.shard_bytes or SHARD_BYTES), segments, form
        )
    return runs, list(holes)


def machine_memory_bytes() -> int:
    """Return the bytes of this machine's memory that entries may use before they are written to disk."""
    limits = [0]
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not every system reports it
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))  # of a container
    return max(MEMORY_BYTES, min(_MEMORY_MAX, min(limits) // _MEMORY_SHARE))


@dataclass(frozen=True)
class _RowGroups:
    """Some row groups of a file; to its end if it `is_last`."""

    row: dict
    first_group: int
    stop_group: int
    is_last: bool

    @property
    def file_id(self) -> int:
        return self.row["file_id"]


def _parts(files: pa.Table) -> Iterator[_RowGroups]:
    for row in files.select(FILE_COLUMNS).to_pylist():
        groups, rows = row["row_groups"] or 1, row["row_count"] or 0
        at_once = max(1, groups * _TASK_ROWS // max(rows, 1))
        for first in range(0, groups, at_once):
            yield _RowGroups(row, first, first + at_once, first + at_once >= groups)


def _read(
    reader: ColumnReader, kinds: Sequence[pa.DataType], files: pa.Table, sorter: ValueSorter
) -> Generator[tuple[_RowGroups, list[GroupValues] | Exception]]:
    def read(part: _RowGroups) -> list[GroupValues] | Exception:
        try:
            return _keys_of(reader, kinds, part, sorter)
        except (*FILE_ERRORS, SchemaError, InvalidArgumentError) as error:
            return error

    parts = list(_parts(files))
    yield from zip(parts, prefetched(read, parts, BUILD_THREADS, "skipstone-build"), strict=True)


def _keys_of(
    reader: ColumnReader, kinds: Sequence[pa.DataType], part: _RowGroups, sorter: ValueSorter
) -> list[GroupValues]:
    """Return the values of each row group of a part."""
    groups: list[GroupValues] = []
    with reader.open(part.row) as file:
        counts = file.row_counts
        # The manifest may count too few row groups: the last part contains the rest.
        for group in range(part.first_group, len(counts) if part.is_last else min(part.stop_group, len(counts))):
            values = file.read(group)
            typed = [_as_kind(one, kind, part.row["path"]) for one, kind in zip(values, kinds, strict=False)]
            columns = [*typed, *values[len(kinds) :]]
            groups.append(sorter.encode(part.file_id, group, sum(counts[:group]), columns))
    return groups


def _as_kind(values: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Return the values in a type of their encoding's class. Raise SchemaError if a value would change."""
    own = values.type.value_type if is_list(values.type) else values.type
    if ordered_class(plain_type(own)) == ordered_class(kind):
        return values
    if is_list(values.type):
        raise SchemaError(f"{path}: elements of type {own} are not indexed as {kind}")
    try:
        return combine(cast_exactly(pa.chunked_array([values]), pa.field(path, kind)))
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from None
