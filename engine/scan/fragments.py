"""A plan as a pyarrow Dataset of its files, for engines that read Parquet themselves and find columns by name.

pyarrow reads local files itself, and others through our storage. Also: what such an engine would read wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs

from ...errors import NotReadableError, SkipstoneError, StorageError
from ..parquet.footers import READ_OPTIONS
from ..storage import Counted, Entry
from .file_reader import check_identity

if TYPE_CHECKING:
    from ..state import FileSchema, Instant
    from .file_tasks import FileTask, RowGroups


def dataset_of(pairs: list[tuple[FileTask, RowGroups]], instant: Instant, storage: Counted) -> ds.FileSystemDataset:
    """The surviving row groups as a Dataset of the table's schema. It contains all their rows: repeat the predicate.

    Raises NotReadableError for a file that is missing or not the one that was planned, or that contains a column under
    another name than the table's.
    """
    entries = [check_identity(task, storage) for task, groups in pairs if groups.kept != []]
    form = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(**READ_OPTIONS))
    disk = _filesystem_of(storage, entries)
    located = {entry.path: storage.open_file(entry) for entry in entries}
    lacking = [_lacking(file_schema, instant) for file_schema in instant.file_schemas]
    fragments = []
    for task, groups in pairs:
        if groups.kept == []:
            continue
        place = located[task.path]
        _check_names(task, instant)
        fragments.append(
            form.make_fragment(
                place if isinstance(place, str) else task.path,
                filesystem=disk,
                partition_expression=_guarantee({**task.partition, **lacking[task.schema_id]}),
                row_groups=groups.kept,
            )
        )
    return ds.FileSystemDataset(fragments, instant.schema, form, disk)


def _check_names(task: FileTask, instant: Instant) -> None:
    for name, file_name in renamed(instant.file_schemas[task.schema_id], instant):
        raise NotReadableError(
            f"{task.path}: column {name!r} is {file_name!r} in this file, written before it was renamed; a Dataset "
            "finds columns by their names: use to_reader() or to_table(), or rewrite the file",
            paths=[task.path],
        )

    for name, file_name in names_within(instant.file_schemas[task.schema_id], instant):
        raise NotReadableError(
            f"{task.path}: fields within column {name!r} have other names in this file ({file_name!r}); a Dataset "
            "finds them by their names: use to_reader() or to_table(), or rewrite the file",
            paths=[task.path],
        )


def _lacking(file_schema: FileSchema, instant: Instant) -> dict[str, pa.Scalar]:
    """The columns that files of a physical schema lack, and what is read for them. Left out are those that
    pyarrow reads as null by itself: the file has nothing of that name."""
    column_ids = set(file_schema.fields.values())
    values = {}
    for name, number in instant.fields.items():
        if number not in column_ids and name not in instant.partitioning:
            default = instant.defaults.get(number)
            if default is not None:
                values[name] = default
            elif file_schema.schema.get_field_index(name) >= 0:
                values[name] = pa.nulls(1, instant.schema.field(name).type)[0]
    return values


def _guarantee(values: dict[str, pa.Scalar]) -> pc.Expression | None:
    """What is known of every row of a file, in place of what the file may contain under these names."""
    guarantee = None
    for name, value in values.items():
        one = pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        guarantee = one if guarantee is None else guarantee & one
    return guarantee


def renamed(file_schema: FileSchema, instant: Instant) -> list[tuple[str, str]]:
    """(the table's name, the files' own) of columns that files of a physical schema contain under another name."""
    names = {number: name for name, number in instant.fields.items()}
    return [
        (names[n], file_name) for file_name, n in file_schema.fields.items() if names.get(n, file_name) != file_name
    ]


def names_within(file_schema: FileSchema, instant: Instant) -> list[tuple[str, str]]:
    """(a column of the table, the dotted path in files of a field within) of fields that files of a physical schema
    name otherwise than the table."""
    names = {number: name for name, number in instant.fields.items()}
    pairs = [(names.get(file_schema.fields[path[0]]), ".".join(path)) for path in file_schema.nested]
    return [(name, path) for name, path in pairs if name is not None]


def name_lookup_problem(
    file_schema: FileSchema, instant: Instant, columns: Sequence[str], can_read: Callable[[pa.DataType, str], bool]
) -> str | None:
    """What a reader would get wrong that looks columns up by name, whatever the case of its letters, and takes null for
    what is not there; None if it reads some top-level columns right. `can_read(type in the file, column)`."""
    for name in columns:
        file_name = file_schema.name_of(instant.fields[name])
        others = [other for other in file_schema.schema.names if other.lower() == name.lower() and other != file_name]
        if file_name is None and others:
            return f"column {name!r} is not in them, but another is, {others[0]!r}"
        if file_name is None and instant.fields[name] in instant.defaults:
            return f"column {name!r} was added with a default, which is not in the files"
        if file_name is None:
            continue
        if file_name != name:
            return f"column {name!r} is {file_name!r} there, written before it was renamed"
        if others:
            return f"column {name!r} is next to another, {others[0]!r}, which differs only in case"
        within = next((path for column, path in names_within(file_schema, instant) if column == name), None)
        if within is not None:
            return f"column {name!r} has fields under other names there, as {within!r}"
        if not can_read(file_schema.schema.field(file_name).type, name):
            kind = file_schema.schema.field(file_name).type
            return f"column {name!r} is {kind} there, which cannot be read as the table has it"
    return None


# -- files that are not local ------------------------------------------------------------------------------------------


def _filesystem_of(storage: Counted, entries: Sequence[Entry]) -> fs.FileSystem:
    """The local disk, if the storage is one; else a file system that has these files, by their paths in the
    manifest, for reading. A file that was overwritten since raises NotReadableError when it is read."""
    if all(isinstance(storage.open_file(entry), str) for entry in entries[:1]):
        return fs.LocalFileSystem()
    return fs.PyFileSystem(_PlannedFiles(storage, entries))


class ReadNothing(fs.FileSystemHandler):
    """A file system on which nothing can be listed, read or written: every call raises an error."""

    def __init__(self, error: type[SkipstoneError], message: str):
        self._error, self._message = error, message

    def get_type_name(self) -> str:
        return "skipstone"

    def normalize_path(self, path: str) -> str:
        return path

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self._error(self._message)

    get_file_info: Callable = _refuse
    get_file_info_selector: Callable = _refuse
    create_dir: Callable = _refuse
    delete_dir: Callable = _refuse
    delete_dir_contents: Callable = _refuse
    delete_root_dir_contents: Callable = _refuse
    delete_file: Callable = _refuse
    move: Callable = _refuse
    copy_file: Callable = _refuse
    open_input_stream: Callable = _refuse
    open_input_file: Callable = _refuse
    open_output_stream: Callable = _refuse
    open_append_stream: Callable = _refuse


class _PlannedFiles(ReadNothing):
    """Opens and looks at the files of one plan; lists nothing, and writes nothing."""

    def __init__(self, storage: Counted, entries: Sequence[Entry]):
        message = f"{storage.uri}: the files of a plan are read-only; nothing is listed or written"
        super().__init__(StorageError, message)
        self._storage = storage
        self._entries = {entry.path: entry for entry in entries}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _PlannedFiles) and (self._storage, self._entries) == (other._storage, other._entries)

    __hash__ = None  # type: ignore[assignment]

    def get_file_info(self, paths: Sequence[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.PythonFile(self._storage.open_file(self._entries[path]), mode="r")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def _info(self, path: str) -> fs.FileInfo:
        entry = self._entries.get(path)
        if entry is None:
            return fs.FileInfo(path, fs.FileType.NotFound)
        return fs.FileInfo(path, fs.FileType.File, size=entry.size_bytes)
