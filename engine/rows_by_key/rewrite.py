"""Writes files again with their rows edited: what one task does, in this process or in an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy
from ...errors import CorruptionError, NotReadableError, SchemaError
from ..commit.adopt_columns import unread_columns
from ..parquet.footers import open_parquet
from ..predicates import Constant
from ..scan.file_reader import count_matches, joined_columns, matches_in_file, selected_schema, verify_unchanged
from ..scan.file_tasks import FileTask, ReadContext, RowGroups
from ..scan.row_groups import row_groups_of
from ..storage import Counted, open_storage
from ..tasks.spec import TaskSpec
from ..tasks.writer import TaskWriter
from .edits import NO_ROWS, Edit, Edited, KeyedRows, NamedRows

if TYPE_CHECKING:
    from ..indexes.task_result import TaskResult
    from ..scan.planning import PlannedScan

_KEY_COLUMNS_BYTES_MAX = 64 << 20  # of a file, which a thread keeps until it has read the other columns
_CODECS = {"UNCOMPRESSED": "none", **{name.upper(): name for name in ("snappy", "gzip", "brotli", "lz4", "zstd")}}


@dataclass(frozen=True)
class OldFile:
    """A file that may be written again, and the text of its partition.

    named    the rows that change, by their positions among all rows; None: the edit has to find them
    keys     columns that were read to find these, a table per row group: they are not read again; empty if too large
    """

    task: FileTask
    partition: str
    named: NamedRows | None = None
    keys: Sequence[pa.Table] = ()


@dataclass(frozen=True)
class Written:
    """What a task did.

    results    of its writer, which the commit accepts
    changed    path -> rows that were deleted or updated, of each file that is replaced or removed
    found      int64: the rows of `keyed` whose keys were found
    """

    results: list[Any]
    changed: dict[str, int]
    found: np.ndarray


def old_files(planning: PlannedScan, tasks: Sequence[FileTask]) -> list[OldFile]:
    """Files of a plan, with the texts of their partitions.

    Raises NotReadableError for a file of a file group: without its latest base, an older one would count again; and
    SchemaError for a file with columns that the table does not read, which the new file would not have.
    """
    from ..views import files_view

    files = files_view(planning.pruned.units.files, planning.snapshot)
    rows = zip(*(files.column(name).to_pylist() for name in ("path", "partition", "file_group")), strict=True)
    by_path = {path: (text, group) for path, text, group in rows}
    grouped = [task.path for task in tasks if by_path[task.path][1] is not None]
    if grouped:
        raise NotReadableError(
            f"{grouped[0]}: belongs to a file group, which its owner compacts; choose other files by where=",
            paths=grouped,
        )
    instant = planning.snapshot.instant
    unread = {n: unread_columns(instant, instant.file_schemas[n]) for n in {task.schema_id for task in tasks}}
    for task in tasks:
        if unread[task.schema_id]:
            raise SchemaError(
                f"{task.path}: contains columns that the table does not read, and that would be lost: "
                f"{', '.join(unread[task.schema_id])}; sync() or alter(add=) adds new ones; replace() the file if the "
                "table has, or had, columns of such names"
            )
    return [OldFile(task, by_path[task.path][0]) for task in tasks]


def with_codec_of(spec: TaskSpec, storage: Counted, tasks: Sequence[FileTask]) -> TaskSpec:
    """The spec with the codec of most bytes of the largest file; unchanged if Arrow cannot write that codec.

    Raises NotReadableError if that file was removed or overwritten.
    """
    task = max(tasks, key=lambda task: task.size_bytes)
    sizes: dict[str, int] = {}
    with (
        verify_unchanged(task, storage) as entry,
        open_parquet(storage, entry, is_checked=False) as file,
    ):
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            for chunk in map(group.column, range(group.num_columns)):
                sizes[chunk.compression] = sizes.get(chunk.compression, 0) + chunk.total_compressed_size
    codec = _CODECS.get(max(sizes, key=sizes.__getitem__, default=""))
    return spec if codec is None else replace(spec, parquet_options={**spec.parquet_options, "compression": codec})


def count_in(files: Sequence[OldFile], context: ReadContext, keyed: KeyedRows | None = None) -> dict[str, int]:
    """path -> how many rows of each file match; files without such rows are left out. Arguments as of `rewrite`."""
    data = Counted(open_storage(context.location, context.storage_options))
    return {file.task.path: count for file, count in _counted(files, context, data, keyed) if count}


def _counted(
    files: Sequence[OldFile], context: ReadContext, data: Counted, keyed: KeyedRows | None
) -> Iterator[tuple[OldFile, int]]:
    """Each file with the number of its rows that match; a file is read when it is its turn."""
    index = open_storage(context.index_location, context.storage_options, is_index=True)
    pruned = row_groups_of([file.task for file in files], context, index)
    for file, groups in zip(files, pruned, strict=True):
        if keyed is not None and file.task.rows is None and context.bound == Constant(True):
            yield _compared(file, keyed, context, data)
        elif file.task.all_match and file.task.is_exact:
            yield file, file.task.row_count
        else:
            yield file, 0 if groups.kept == [] else count_matches(file.task, groups, context, data)


def _compared(file: OldFile, keyed: KeyedRows, context: ReadContext, data: Counted) -> tuple[OldFile, int]:
    """The file with its rows that have a key of a source, and their number."""
    found, keys = [NamedRows(NO_ROWS, NO_ROWS)], list[pa.Table]()
    first = size_bytes = 0
    for rows in rows_of(file, replace(context, columns=keyed.on), data):
        positions, source_rows = keyed.rows_with_keys(rows)
        found.append(NamedRows(positions + first, source_rows))
        first, size_bytes = first + rows.num_rows, size_bytes + rows.nbytes
        keys = [*keys, rows] if size_bytes <= _KEY_COLUMNS_BYTES_MAX else []
    named = NamedRows(*map(np.concatenate, zip(*found, strict=True)))
    return replace(file, named=named, keys=keys), len(named.rows)


class FileWriter(Protocol):
    """Writes new files. Used as a context manager, which removes them if its block raises.

    result    what the commit accepts, after the block
    """

    @property
    def result(self) -> list[Any]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None: ...

    def rewrite(self, file: OldFile, edited: Edited, updated: Sequence[str]) -> None:
        """Write rows of an old file again. `updated`: the columns of which `edited.changed` rows have new values."""
        ...

    def insert(self, rows: pa.Table) -> None:
        """Write rows that no file contains, with some or all columns of the table."""
        ...


class OwnWriter:
    """A `FileWriter` for a table whose files belong to it."""

    def __init__(self, spec: TaskSpec):
        self._task, self._partitioning = TaskWriter(spec), list(spec.partitioning)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._task.__exit__(kind, error, traceback)

    @property
    def result(self) -> list[TaskResult]:
        return self._task.result

    def rewrite(self, file: OldFile, edited: Edited, updated: Sequence[str]) -> None:
        kept, names = edited.rows, [name for name in self._partitioning if name in updated]
        if updated and not names:  # every row stays where it is
            rows = kept.drop_columns(self._partitioning)
            self._task.copy_group(file.task.path, file.partition, rows, updated)
            return
        moved = _moved(kept, edited.changed, file.task, names)
        if len(moved):
            self.insert(kept.take(from_numpy(moved)))
            stays = np.ones(kept.num_rows, dtype=bool)
            stays[moved] = False
            kept = kept.filter(from_numpy(stays))
        if kept.num_rows:
            self._task.write_to(file.partition, kept.drop_columns(self._partitioning))

    def insert(self, rows: pa.Table) -> None:
        self._task.write(rows)


def _moved(rows: pa.Table, changed: np.ndarray, task: FileTask, partitioning: Sequence[str]) -> np.ndarray:
    """int64, ascending: the changed rows whose partition is no longer that of the file."""
    is_moved = np.zeros(len(changed), dtype=bool)
    for name in partitioning if len(changed) else ():
        old = task.partition[name].as_py()
        values = rows.column(name).take(from_numpy(changed)).to_pylist()
        # NaN does not equal itself
        is_moved |= [value != old and not (value != value and old != old) for value in values]
    return changed[is_moved]


def rewrite(
    files: Sequence[OldFile],
    edit: Edit,
    context: ReadContext,
    open_writer: Callable[[], FileWriter],
    keyed: KeyedRows | None = None,
    on_file: Callable[[], None] = lambda: None,
) -> Written:
    """Writes the files again in which the edit changes rows. Files without such rows stay; a file whose rows all go is
    not read.

    context        of the table's columns, and of the predicate of the rows that change
    open_writer    returns the writer of the new files
    keyed          the rows with whose keys files are compared if neither an index nor the predicate chooses their rows
    on_file        called after each file; what it raises ends the work

    Raises CorruptionError if a file has other rows than its index says.
    """
    data = Counted(open_storage(context.location, context.storage_options))
    changed: dict[str, int] = {}
    with open_writer() as writer:
        for file, count in _counted(files, context, data, keyed):
            if count:
                changed[file.task.path] = count
                if not (edit.deletes and file.task.is_exact and count == file.task.row_count):
                    _check_count(file, count, rewrite_file(file, edit, context, data, writer))
            on_file()
    return Written(writer.result, changed, found_rows(keyed))


def find_keys(files: Sequence[OldFile], keyed: KeyedRows, context: ReadContext) -> np.ndarray:
    """int64: the rows of `keyed` whose keys some files contain. `context`: of the columns of the key."""
    data = Counted(open_storage(context.location, context.storage_options))
    for file in files:
        for rows in rows_of(file, context, data):
            keyed.find(rows)
    return found_rows(keyed)


def found_rows(keyed: KeyedRows | None) -> np.ndarray:
    """int64: the rows of `keyed` whose keys were found; none if it is None."""
    return np.flatnonzero([] if keyed is None else keyed.found)


def rewrite_file(file: OldFile, edit: Edit, context: ReadContext, data: Counted, writer: FileWriter) -> int:
    """Writes the rows of a file again, edited. Returns how many rows changed."""
    count = first = 0
    named = file.named
    if file.task.rows is not None and file.task.rows_exact and file.task.is_exact:
        named = NamedRows(file.task.rows)
    for rows in rows_of(file, context, data):
        edited = edit.apply(rows, None if named is None else named.within(first, rows.num_rows))
        first += rows.num_rows
        count += edited.count
        writer.rewrite(file, edited, edit.updated)
    return count


def _check_count(file: OldFile, count: int, edited_count: int) -> None:
    if edited_count != count:
        raise CorruptionError(
            f"{count:,} rows match by the index, and {edited_count:,} by reading: nothing is committed; see "
            "verify(deep=True)",
            path=file.task.path,
            check="rows",
        )


def rows_of(file: OldFile, context: ReadContext, data: Counted) -> Iterator[pa.Table]:
    """All rows of a file. Raises CorruptionError if they are not as many as the index says."""
    task, row_count = replace(file.task, all_match=True, rows=None, rows_exact=False), 0
    names = file.keys[0].column_names if file.keys else ()
    others = replace(context, columns=tuple(name for name in context.columns if name not in names))
    parts = (rows for _, rows in matches_in_file(task, RowGroups(None), others, data))
    if file.keys:
        schema = selected_schema(context)
        parts = (joined_columns(keys, rows, schema) for keys, rows in zip(file.keys, parts, strict=True))
    for rows in parts:
        row_count += rows.num_rows
        yield rows
    if task.is_exact and row_count != task.row_count:
        raise CorruptionError(
            f"should contain {task.row_count:,} rows, and {row_count:,} were read: nothing is committed; see "
            "verify(deep=True)",
            path=task.path,
            check="rows",
        )
