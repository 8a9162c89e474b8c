"""What every log needs: paths as the manifest has them, marks of files, schemas without what only writers care for."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from ... import canon
from ...arrays import string_array
from ...errors import InvalidArgumentError, NotReadableError, SkipstoneError, StorageError
from ..parquet.leaves import plain_type
from ..predicates.coerce import is_list
from ..storage import FileMissingError, Storage, relative_path
from ..storage.object_client import scrubbed
from ..storage.places import is_uri
from .log import LOG_FILES

_HEAD_BYTES = 1 << 16


def head_mark(storage: Storage, path: str) -> str | None:
    """Identifies a file of a log among others of the same name: its size and a digest of how it begins. None where
    there is none. (Not its time: a lake that was copied is still the same.)"""
    try:
        size = storage.stat(path).size_bytes
        (head,) = storage.read_ranges(path, [(0, min(size, _HEAD_BYTES))])
    except FileMissingError:
        return None
    return f"{size}-{hashlib.sha256(head).hexdigest()[:32]}"


def table_path(storage: Storage, path: str) -> str:
    """A path or URI of a log, decoded already, as the manifest has it."""
    if path.startswith("file:"):
        path = "/" + path[len("file:") :].lstrip("/")
    return relative_path(storage, path)


def log_files(
    paths: Sequence[str],
    partitions: pa.Array,
    size_bytes: Sequence[int | None] | pa.Array,
    row_counts: Sequence[int | None] | pa.Array,
    deletes: Sequence[str | None],
    log_only: Sequence[list[str] | None] | None = None,
    slices: Mapping[str, Sequence[str | None]] | None = None,
) -> pa.Table:
    """A table of LOG_FILES. `slices`: the fields of files that form slices."""
    columns = [
        string_array(paths),
        partitions,
        pa.array(size_bytes, pa.int64()),
        pa.array(row_counts, pa.int64()),
        string_array(deletes),
        pa.nulls(len(paths), pa.list_(pa.string())) if log_only is None else pa.array(log_only, pa.list_(pa.string())),
    ]
    for name in LOG_FILES.names[len(columns) :]:
        columns.append(pa.nulls(len(paths), pa.string()) if slices is None else string_array(slices[name]))
    return pa.Table.from_arrays(columns, schema=LOG_FILES)


def loose_schema(schema: pa.Schema) -> pa.Schema:
    """A schema in which columns of the same values have the same type, as `footers.plain_schema`, at every depth: no
    "not null" either, no large types, no extensions but UUIDs."""
    return pa.schema([pa.field(f.name, loose_type(f.type)) for f in schema])


def loose_type(kind: pa.DataType) -> pa.DataType:
    """The type that `loose_schema` gives a column of a type."""
    if canon.is_uuid(kind):
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        return loose_type(kind.storage_type)
    kind = plain_type(kind)
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, loose_type(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(loose_type(kind.key_type), loose_type(kind.item_type))
    if is_list(kind):
        return pa.list_(loose_type(kind.value_type))
    return kind


def missing_package(package: str, extra: str) -> InvalidArgumentError:
    """The error for a log whose package is not installed."""
    return InvalidArgumentError(
        f"this table's log is read through the package {package}, which is not installed: "
        f"pip install 'skipstone[{extra}]'"
    )


@contextlib.contextmanager
def storage_errors(storage: Storage, package: str) -> Iterator[None]:
    """What a package raises about a log becomes a StorageError that names the table."""
    try:
        yield
    except NotReadableError as error:  # of a file that may lie anywhere
        if error.paths or storage.uri in error.message:
            raise
        raise NotReadableError(f"{storage.uri}: {error.message}", changed=error.changed) from error
    except (SkipstoneError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # what a library's Rust part raises in a panic is no Exception
        message, cause = first_line_of(storage, error)
        raise StorageError(f"{storage.uri}: {package} cannot read its log ({message})") from cause


def first_line_of(storage: Storage, error: BaseException) -> tuple[str, BaseException | None]:
    """(the first line of what a package says of a log, without secrets; the cause to name). Of an object store no cause
    is named: its text may show requests whole, and so what signs them."""
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return scrubbed(line, storage.options), None if is_uri(storage.uri) else error
