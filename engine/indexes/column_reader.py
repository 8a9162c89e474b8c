"""Read the columns of an index from data files, one row group after the other, under each file's own column names."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from ...errors import InvalidArgumentError, SchemaError
from ..parquet.footers import FILE_ERRORS, corruption_errors, open_indexed, prefetch, rows_of_group
from ..parquet.leaves import leaf_array, leaf_type, top_level
from ..state import IndexState, Instant
from ..storage import Storage
from ..storage.threads import BUILD_THREADS, prefetched
from .columns import ColumnInFiles, column_in_files
from .derived import Source, source_of
from .elements import element_type

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from .kind import BuildContext

_FILE_COLUMNS = [
    *("file_id", "path", "size_bytes", "modified_ns", "etag", "kind", "schema_id", "row_count", "row_groups"),
]
R = TypeVar("R")


@dataclass(frozen=True)
class ColumnReader:
    """Reads the columns of an index. Picklable.

    columns    where each column that is read is in files of each physical schema
    schemas    the physical schemas, by schema id
    sources    one per column of the index; a computed one reads several of `columns`
    """

    storage: Storage
    columns: Sequence[ColumnInFiles]
    schemas: Sequence[pa.Schema]
    sources: Sequence[Source]

    @classmethod
    def of(cls, storage: Storage, instant: Instant, index: IndexState, included: Sequence[str] = ()) -> ColumnReader:
        """Return a reader of an index's columns, followed by the `included` columns."""
        names = [*instant.names_of(index), *included]
        sources = [source_of(instant, index, name) for name in names]
        columns: list[ColumnInFiles] = []
        for source, name in zip(sources, names, strict=True):
            read = [name] if source.computation is None else source.paths
            located = [column_in_files(instant, each) for each in read]
            columns += [column for column in located if column is not None]
            assert None not in located  # else they could not be indexed
        return cls(storage, columns, [physical.schema for physical in instant.file_schemas], sources)

    @contextlib.contextmanager
    def open(self, row: dict[str, Any]) -> Iterator[OpenColumns]:
        """Open the columns in the file of a manifest row. Raise SchemaError if the place of a column in it is unknown,
        StorageError if the file changed since it was indexed, CorruptionError if it cannot be read."""
        with open_indexed(self.storage, row) as file:
            names = set(file.arrow_schema.names)
            paths: list[str | None] = []
            for column in self.columns:
                path, _ = column.path_by_schema.get(row["schema_id"], (None, None))
                if path is None and row["schema_id"] not in column.schemas_without:
                    raise SchemaError(f"{row['path']}: where the column is in it is not known")
                is_there = path is not None and top_level(self.schemas[row["schema_id"]], path) in names
                paths.append(path if is_there else None)
            yield OpenColumns(file, row["path"], self.columns, paths, self.sources)


@dataclass(frozen=True)
class OpenColumns:
    """Columns in one file. `paths`: the dotted path of each, None if the file lacks it. `sources`: how the index's
    columns are computed from them."""

    file: pq.ParquetFile
    name: str
    columns: Sequence[ColumnInFiles]
    paths: Sequence[str | None]
    sources: Sequence[Source]

    @property
    def types(self) -> list[pa.DataType | None]:
        """The type that each column of the index has in the file. A column that the file lacks has the table's type."""
        read = iter(self._types_read)
        types = [list(islice(read, len(source.paths))) for source in self.sources]
        pairs = zip(types, self.sources, strict=True)
        return [own[0] if source.computation is None else source.computation.type for own, source in pairs]

    @property
    def _types_read(self) -> list[pa.DataType | None]:
        return [
            column.type if path is None else _type_of(self.file.arrow_schema, path)
            for column, path in zip(self.columns, self.paths, strict=True)
        ]

    @property
    def row_counts(self) -> list[int]:
        """The row count of each row group."""
        return [self.file.metadata.row_group(i).num_rows for i in range(self.file.metadata.num_row_groups)]

    def read(self, group: int) -> list[pa.Array]:
        """Return the values of each column in all rows of a row group; the default if the file lacks the column, the
        lists if elements are indexed. Raise SchemaError if an expression cannot be computed."""
        read = iter(self._read(group))
        arrays = [list(islice(read, len(source.paths))) for source in self.sources]
        pairs = zip(arrays, self.sources, strict=True)
        return [own[0] if source.computation is None else source.computation.values(own) for own, source in pairs]

    def _read(self, group: int) -> list[pa.Array]:
        count = self.file.metadata.row_group(group).num_rows
        names = list(dict.fromkeys(path for path in self.paths if path is not None))
        with corruption_errors(self.name):
            if names:
                prefetch(self.file, group, names)
                rows = rows_of_group(self.file, group, names, self.name)
        return [
            _default(column, count) if path is None else leaf_array(rows, path)
            for column, path in zip(self.columns, self.paths, strict=True)
        ]


def file_rows(files: pa.Table) -> list[dict[str, Any]]:
    """Return what `each_file` needs of files of the manifest."""
    return files.select(_FILE_COLUMNS).to_pylist()


def each_file(
    rows: Sequence[dict[str, Any]],
    job: BuildContext,
    step: str,
    read: Callable[[dict[str, Any]], R],
    take: Callable[[int, R], None],
    threads: int = BUILD_THREADS,
) -> tuple[list[int], list[int]]:
    """Read files, or parts of files, in threads, a bounded number ahead. Pass each result of `read` to `take`, in the
    order of `rows` (`file_rows`, perhaps with a part of the file), until the job is due. Return the ids of files that
    cannot be read (with a warning for each), and the ids of files that were not reached."""
    unreadable: dict[int, None] = {}
    reached = 0

    def result_of(row: dict[str, Any]) -> R | Exception:
        try:
            return read(row)
        except (*FILE_ERRORS, SchemaError, InvalidArgumentError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            return error

    with contextlib.closing(prefetched(result_of, rows, threads, "skipstone-build")) as results:
        for row, result in zip(rows, results, strict=True):
            file_id = row["file_id"]
            if not isinstance(result, Exception):
                take(file_id, result)
            elif file_id not in unreadable:
                unreadable[file_id] = None
                warnings.warn(f"not indexed, and read by every scan until it is: {result}", stacklevel=8)
            reached += 1
            job.tell(step, reached, len(rows))
            if job.is_due:
                break
    return list(unreadable), [row["file_id"] for row in rows[reached:]]


def _type_of(schema: pa.Schema, path: str) -> pa.DataType | None:
    """Return the type of a leaf, or of the elements of a list column."""
    index = schema.get_field_index(path)
    elements = None if index < 0 else element_type(schema.field(index).type)
    return elements or leaf_type(schema, path)


def _default(column: ColumnInFiles, count: int) -> pa.Array:
    return pa.nulls(count, column.type) if column.default is None else pa.repeat(column.default, count)
