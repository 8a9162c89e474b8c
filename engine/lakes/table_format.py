"""The protocol of a table format with a log, such as Delta, Iceberg or Hudi, and what its implementations share.

A log answers three questions: its latest state, the live files of a state, and the changes since another state.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from ...base.arrays import filled, string_array, to_numpy
from ...errors import CorruptionError, InvalidArgumentError, NotReadableError, SkipstoneError, StorageError
from ..state.manifest import COUNT_MAX
from ..storage import FileMissingError, Storage, relative_path
from ..storage.object_client import scrubbed
from ..storage.places import is_uri

if TYPE_CHECKING:
    from ..state import Instant
    from .column_naming import Columns

_HEAD_BYTES = 1 << 16

# One row per live file.
#   deletes    identifies the deletes that apply to the file, or the reason why Skipstone cannot read its rows; null if
#              every row is live. It is part of the file's identity.
#   row_count  as the log records it, deleted rows included; null if unknown
#   log_only   columns, except partition columns, whose single value only the log has if the file lacks them
# The other fields are for files that form slices, as in the manifest; null elsewhere (`kind`: a base file).
LOG_FILES = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("partition", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("row_count", pa.int64()),
        pa.field("deletes", pa.string()),
        pa.field("log_only", pa.list_(pa.string())),
        *(pa.field(name, pa.string()) for name in ("kind", "file_group", "slice_instant", "commit", "merge")),
    ]
)


@dataclass(frozen=True)
class Changes:
    """The changes between two states.

    added      files that were added or changed (LOG_FILES); all live files if `removed` is None
    removed    every path that is no longer live unchanged; None if the log does not show it
    groups     (partition, file group): only the files of these in `added` are live
    """

    added: pa.Table
    removed: frozenset[str] | None
    groups: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class RecordedState:
    """The state of a log that a Skipstone version recorded; see `LogState`.

    partitioning    (the log's key, Arrow field) of each partition column, in order
    has_nested_names    files may have other names for fields within columns
    """

    version: int | None
    position: str
    table_id: str
    mark: str
    partitioning: tuple[tuple[str, pa.Field], ...]
    has_nested_names: bool = False


@dataclass(frozen=True)
class LogState:
    """One state of a log.

    kind        "delta" | "iceberg" | "hudi"
    version     the log's number of the state; None if it has none yet
    position    finds the state again: see `LogSource.state_at`
    table_id    the log's id of its table; a table that was created again has another
    mark        differs between states of one version if the log was replaced
    columns     the table's; None if they are the columns of the state to which this one was compared
    changes     since the state to which this one was compared; every live file if there was none
    live_files  returns every live file (LOG_FILES), for a table of which nothing recorded remains valid
    """

    kind: str
    version: int | None
    position: str
    table_id: str
    mark: str
    columns: Columns | None
    changes: Changes
    live_files: Callable[[], pa.Table]


class LogSource(Protocol):
    """The log of one table.

    location    opens the table in another process: its directory, or the last metadata file if the newest may not count
    """

    @property
    def location(self) -> str: ...

    def state_at(self, position: str | None, since: RecordedState | None) -> LogState | None:
        """Return the latest state, or the one at a position; None if it equals `since`.

        Raises NotATableError if there is no such log, NotReadableError if rows could be missed or misread,
        StorageError if it cannot be read now, InvalidArgumentError if the package for it is missing.
        """
        ...

    def position_of(self, log_version: int) -> str:
        """Return the position of a version. Raises NotATableError if the log lacks it; otherwise as `state_at`."""
        ...

    def deleted_rows(self, position: str | None, paths: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the deleted rows of live files: int64, ascending row numbers. Files whose deletes are not by row
        number, such as those under equality deletes, are left out. Raises as `state_at`."""
        ...


@runtime_checkable
class MergesSlices(Protocol):
    """A log whose own reader merges slices into rows."""

    def slice_rows(self, position: str | None) -> Callable[[pa.Table], pa.Table]:
        """Return a function from the files of one slice (path, kind, merge) to its rows. Raises as
        `LogSource.state_at`; the function raises NotReadableError, naming a file, if the reader cannot merge it."""
        ...


def describe(state: LogState) -> dict[str, Any]:
    """Return a state as an instant stores it (`Instant.source`)."""
    last_id = None if state.columns is None else state.columns.last_id
    return {
        "kind": state.kind,
        "version": state.version,
        "position": state.position,
        "table": state.table_id,
        "mark": state.mark,
        **({} if last_id is None else {"last_id": last_id}),
    }


def recorded_state(instant: Instant) -> RecordedState:
    """Return the state of the log that a Skipstone version recorded."""
    source = instant.source
    keys = {number: key for key, number in source["keys"].items()}
    return RecordedState(
        source["version"],
        source["position"],
        source["table"],
        source["mark"],
        tuple((keys[instant.fields[name]], instant.schema.field(name)) for name in instant.partitioning),
        bool(source.get("inner")),
    )


# -- for implementations ----------------------------------------------------------------------------------------------


def file_fingerprint(storage: Storage, path: str) -> str | None:
    """Return the size and a digest of the first 64 KiB of a file of the log; None if it does not exist. The time is not
    part of it: a copied lake is the same."""
    try:
        size = storage.stat(path).size_bytes
        (head,) = storage.read_ranges(path, [(0, min(size, _HEAD_BYTES))])
    except FileMissingError:
        return None
    return f"{size}-{hashlib.sha256(head).hexdigest()[:32]}"


def table_path(storage: Storage, path: str) -> str:
    """Return a decoded path or URI of a log as in the manifest. Raise CorruptionError if it names no file."""
    if not path or "\0" in path:
        raise CorruptionError(f"the log has a file of the path {path!r}", path=storage.uri, check="path of a file")
    return relative_path(storage, local_path(path))


def local_path(uri: str) -> str:
    """Return the path of a decoded file URI, and any other URI unchanged."""
    return "/" + uri[len("file:") :].lstrip("/") if uri.startswith("file:") else uri


def log_files(
    paths: Sequence[str],
    partitions: pa.Array,
    size_bytes: Sequence[int | None] | pa.Array,
    row_counts: Sequence[int | None] | pa.Array,
    deletes: Sequence[str | None],
    log_only: Sequence[list[str] | None] | None = None,
    slices: Mapping[str, Sequence[str | None]] | None = None,
) -> pa.Table:
    """Return a table of LOG_FILES. `slices`: the fields of files that form slices.

    Raises CorruptionError for a size or a row count that no file has: a version with it could never be read.
    """
    strings = pa.list_(pa.string())
    columns = [
        string_array(paths),
        partitions,
        pa.array(size_bytes, pa.int64()),
        pa.array(row_counts, pa.int64()),
        string_array(deletes),
        pa.nulls(len(paths), strings) if log_only is None else pa.array(log_only, strings),
    ]
    for name in LOG_FILES.names[len(columns) :]:
        columns.append(pa.nulls(len(paths), pa.string()) if slices is None else string_array(slices[name]))
    files = pa.Table.from_arrays(columns, schema=LOG_FILES)
    for name, default in (("size_bytes", -1), ("row_count", 0)):
        counts = to_numpy(filled(files.column(name), default))
        for row in np.flatnonzero((counts < 0) | (counts > COUNT_MAX))[:1].tolist():
            message = f"the log of its table records {files.column(name)[row]} as its {name}"
            raise CorruptionError(message, path=paths[row], check="log")
    return files


def missing_package(package: str, extra: str) -> InvalidArgumentError:
    """Return the error for a log whose package is not installed."""
    return InvalidArgumentError(
        f"this table's log is read through the package {package}, which is not installed: "
        f"pip install 'skipstone[{extra}]'"
    )


@contextlib.contextmanager
def storage_errors(storage: Storage, package: str) -> Iterator[None]:
    """Turn the errors of a package about a log into a StorageError that names the table."""
    try:
        yield
    except NotReadableError as error:  # about a file that may be stored anywhere
        if error.paths or storage.uri in error.message:
            raise
        raise NotReadableError(f"{storage.uri}: {error.message}", changed=error.changed) from error
    except (SkipstoneError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic in the Rust part of a library is not an Exception
        message, cause = first_line_of(storage, error)
        raise StorageError(f"{storage.uri}: {package} cannot read its log ({message})") from cause


def check_location(storage: Storage, package: str) -> None:
    """Raise NotReadableError if a package that parses the location as a URI would read another folder."""
    ends = is_uri(storage.uri) and re.search("[#?]", storage.uri)
    if ends or unquote(storage.uri) != storage.uri:
        raise NotReadableError(
            f"{storage.uri}: {package} would read another folder, because it resolves escapes such as %20, and in an "
            "object store ends a location at # or ?; rename the folder"
        )


def first_line_of(storage: Storage, error: BaseException) -> tuple[str, BaseException | None]:
    """Return the first line of a package's error, without secrets, and the error to name as the cause.

    An object store's error is never the cause: it may contain a request with its signature.
    """
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return scrubbed(line, storage.options), None if is_uri(storage.uri) else error
