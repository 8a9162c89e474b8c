"""Building a secondary index over files that are there already: their key columns alone are read, in bounded memory."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ....base.arrays import combine
from ....base.ordered_keys import OrderedCode, ordered_class
from ....errors import InvalidArgumentError, SchemaError
from ...parquet.exact_cast import cast_exactly
from ...parquet.footers import FILE_ERRORS, corruption_errors, open_indexed, prefetch, rows_of_group
from ...parquet.leaves import leaf_array, top_level
from ...progress import Progress
from ...state import Run
from ...state.lsm import RunFormat, write_runs
from ...storage import Storage
from ...storage.threads import BUILD_THREADS, prefetched
from ..columns import ColumnInFiles
from .sort import MEMORY_BYTES, EntrySorter

FILE_COLUMNS = ["file_id", "path", "size_bytes", "modified_ns", "etag", "schema_id", "row_count", "row_groups"]
_TASK_ROWS = 1 << 19  # a larger file is read in parts: several are read at once, and each is held whole


@dataclass(frozen=True)
class KeyColumns:
    """The columns of a secondary index, as files hold them. Picklable.

    places     where each lies in files of each physical schema
    kinds      the type that each is encoded as
    schemas    the physical schemas, by the files' schema ids
    """

    places: Sequence[ColumnInFiles]
    kinds: Sequence[pa.DataType]
    schemas: Sequence[pa.Schema]


def build_runs(
    storage: Storage,
    index_storage: Storage,
    files: pa.Table,
    columns: KeyColumns,
    path_of: Callable[[int], str],
    segments: tuple[int, int],
    form: RunFormat,
    *,
    name: str = "secondary",
    progress: Progress | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> tuple[tuple[Run, ...], list[int]]:
    """(one run over some base files, in shards; the ids of those that could not be read, of which it holds nothing).

    files     rows of the manifest: FILE_COLUMNS
    path_of   where shard 0, 1 ... goes
    name      of the step, for `progress`, which counts files
    """
    code = OrderedCode(columns.kinds)
    holes: dict[int, None] = {}
    done = 0
    with (
        EntrySorter(code, memory_bytes) as sorter,
        contextlib.closing(_read(storage, files, columns, sorter)) as parts,
    ):
        for part, batches in parts:
            if isinstance(batches, Exception):
                if part.file_id not in holes:
                    holes[part.file_id] = None
                    warnings.warn(f"not indexed, and read by every scan until it is: {batches}", stacklevel=4)
            else:
                for entries in batches:
                    sorter.add_entries(entries)
            if part.is_last:
                done += 1
                if progress:
                    progress(name, done, files.num_rows)
        runs = write_runs(index_storage, path_of, sorter.sorted(holes), segments, form)
    return runs, list(holes)


@dataclass(frozen=True)
class _RowGroups:
    """Some row groups of a file; to its end, where it `is_last`."""

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
    storage: Storage, files: pa.Table, columns: KeyColumns, sorter: EntrySorter
) -> Generator[tuple[_RowGroups, list[pa.RecordBatch] | Exception]]:
    def read(part: _RowGroups) -> list[pa.RecordBatch] | Exception:
        try:
            return _keys_of(storage, part, columns, sorter)
        except (*FILE_ERRORS, SchemaError, InvalidArgumentError) as error:
            return error

    parts = list(_parts(files))
    yield from zip(parts, prefetched(read, parts, BUILD_THREADS, "skipstone-build"), strict=True)


def _keys_of(storage: Storage, part: _RowGroups, columns: KeyColumns, sorter: EntrySorter) -> list[pa.RecordBatch]:
    """The entries of each row group of a part."""
    row = part.row
    number, path = row["schema_id"], row["path"]
    located = [_located(column, number, path) for column in columns.places]
    batches: list[pa.RecordBatch] = []
    with open_indexed(storage, row) as file:
        names_in_file = set(file.arrow_schema.names)
        located = [p if p and top_level(columns.schemas[number], p) in names_in_file else None for p in located]
        names = list(dict.fromkeys(p for p in located if p is not None))
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        # The manifest may count fewer row groups than there are: the last part takes them all.
        for group in range(part.first_group, len(sizes) if part.is_last else min(part.stop_group, len(sizes))):
            with corruption_errors(path):
                rows = None
                if names:
                    prefetch(file, group, names)
                    rows = rows_of_group(file, group, names, path)
            values = [
                _missing(column, sizes[group]) if rows is None or p is None else leaf_array(rows, p)
                for column, p in zip(columns.places, located, strict=True)
            ]
            typed = [_as_kind(v, kind, path) for v, kind in zip(values, columns.kinds, strict=True)]
            batches.append(sorter.encode(part.file_id, group, sum(sizes[:group]), typed))
    return batches


def _located(column: ColumnInFiles, schema_id: int | None, path: str) -> str | None:
    """The column's path in a file, None where files of its schema lack it."""
    if schema_id in column.located:
        return column.located[schema_id][0]
    if schema_id not in column.lacking:
        raise SchemaError(f"{path}: where the column lies in it is not known")
    return None


def _missing(column: ColumnInFiles, count: int) -> pa.Array:
    """The values of a column in a file that lacks it."""
    return pa.nulls(count, column.type) if column.default is None else pa.repeat(column.default, count)


def _as_kind(values: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """The values in a type of the class that they are encoded as. Raises SchemaError where one would not be itself."""
    if ordered_class(values.type) == ordered_class(kind):
        return values
    try:
        return combine(cast_exactly(pa.chunked_array([values]), pa.field(path, kind)))
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from None
