"""Delta tables: live files through `deltalake`, and the newest commits from their own files.

From a recorded state, Skipstone follows the log commit by commit: `_delta_log/00000000000000000042.json` contains one
action per line (the Delta protocol, "Delta Log Entries"). Checking an unchanged table costs two requests, and a changed
one costs as much as changed. If commits are not enough (some expired, the log was replaced, the schema or the protocol
changed), `deltalake` reads the whole state.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import string_array
from ...errors import NotATableError, NotReadableError, SchemaError, SkipstoneError
from .. import hive
from ..hive import partition_texts
from ..storage import FileMissingError, Storage
from . import DELTA
from .column_naming import ColumnNaming, Columns, normalized_schema
from .deletion_vectors import LOG_FOLDER, live_vectors, rows_of, vector_id
from .table_format import (
    Changes,
    LogState,
    RecordedState,
    check_location,
    file_fingerprint,
    first_line_of,
    log_files,
    missing_package,
    storage_errors,
    table_path,
)

_EXPIRED = "expired"  # the mark of a commit whose file expired; it does not identify the commit
_TAIL_COMMITS_MAX = 1000  # for more commits, reading the whole state is cheaper
_FEATURES = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
    "variantType",
    "variantType-preview",
}
# Errors for JSON whose types or numbers are not the protocol's.
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_CHANGES_NO_FILE = {"commitInfo", "txn", "cdc", "domainMetadata"}
_PHYSICAL, _ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"
_ELEMENTS = {"elementType": "element", "keyType": "key", "valueType": "value"}


class DeltaSource:
    """The log of one Delta table; see `LogSource`."""

    def __init__(self, storage: Storage, options: Mapping[str, str] | None):
        self._storage, self._options = storage, dict(options or {})

    @property
    def location(self) -> str:
        return self._storage.uri

    def state_at(self, position: str | None, since: RecordedState | None) -> LogState | None:
        wanted = None if position is None else int(position)
        if since is not None and since.version is not None and self._mark(since.version) == since.mark != _EXPIRED:
            if wanted == since.version:
                return None
            tail = self._tail(since.version + 1, wanted)
            if tail is not None and tail.has_unique_paths() and not (tail.count and since.has_nested_names):
                try:
                    return self._state_after(tail, since) if tail.count else None
                except SkipstoneError:
                    raise
                except (*_MALFORMED, pa.ArrowException):
                    pass  # deltalake reports what is wrong
        state = self._whole_state(wanted)
        same = since is not None and (state.version, state.table_id, state.mark) == (
            since.version,
            since.table_id,
            since.mark,
        )
        return None if same else state

    def position_of(self, log_version: int) -> str:
        latest = log_version
        if self._mark(log_version) == _EXPIRED:
            with storage_errors(self._storage, "deltalake"):
                latest = self.table(None).version()
        if not 0 <= log_version <= latest:
            raise NotATableError(f"{self._storage.uri}: its Delta log has no version {log_version}, up to {latest}")
        return str(log_version)

    def _mark(self, version: int) -> str:
        return file_fingerprint(self._storage, _commit_path(version)) or _EXPIRED

    # -- from commit to commit ----------------------------------------------------------------------------------------

    def _tail(self, first: int, last: int | None) -> _Tail | None:
        """Return the commits from `first` to `last` or the latest; None if they are not enough."""
        tail = _Tail()
        while last is None or first + tail.count <= last:
            try:
                commit = self._storage.read(_commit_path(first + tail.count))
            except FileMissingError:
                # Commits expire below a checkpoint: one above the last commit found means that some are missing.
                return tail if last is None and self._checkpoint() < first + tail.count else None
            if tail.count == _TAIL_COMMITS_MAX or not tail.add_commit(commit):
                return None
        return tail if tail.count else None

    def _checkpoint(self) -> int:
        with contextlib.suppress(FileMissingError, *_MALFORMED):
            return int(json.loads(self._storage.read(f"{LOG_FOLDER}/_last_checkpoint"))["version"])
        return -1

    def _state_after(self, tail: _Tail, since: RecordedState) -> LogState:
        assert since.version is not None
        version = since.version + tail.count
        adds = [add for add in tail.files.values() if add is not None]
        names = [field.name for _, field in since.partitioning]
        values = [
            _partition_values([add["partitionValues"].get(key) for add in adds], field)
            for key, field in since.partitioning
        ]
        added = log_files(
            [self._path(add["path"]) for add in adds],
            partition_texts(names, values, len(adds)),
            [add["size"] for add in adds],
            [_row_count(add) for add in adds],
            [vector_id(add.get("deletionVector")) for add in adds],
        )
        removed = frozenset(self._path(path) for path, _ in tail.files)
        return self._state(version, since.table_id, None, Changes(added, removed))

    def _state(self, version: int, table_id: str, columns: Columns | None, changes: Changes) -> LogState:
        def live_files() -> pa.Table:
            return self._whole_state(version).changes.added

        return LogState(DELTA, version, str(version), table_id, self._mark(version), columns, changes, live_files)

    def _path(self, path: str) -> str:
        return table_path(self._storage, unquote(path))

    # -- a whole state ------------------------------------------------------------------------------------------------

    def _whole_state(self, version: int | None) -> LogState:
        with storage_errors(self._storage, "deltalake"):
            table = self.table(version)
            columns = _columns(table)
            live = Changes(self._live(table, columns), None)
            return self._state(table.version(), str(table.metadata().id), columns, live)

    def table(self, version: int | None) -> Any:
        """Return deltalake's table at a version, or the latest. Raises NotATableError if the version expired."""
        try:
            return _delta_table(self._storage, version, self._options)
        except SkipstoneError:
            raise
        except Exception as error:
            if version is None or self._mark(version) != _EXPIRED:
                raise
            message, cause = first_line_of(self._storage, error)
            raise NotATableError(
                f"{self._storage.uri}: version {version} of its Delta log expired ({message})"
            ) from cause

    def _live(self, table: Any, columns: Columns) -> pa.Table:
        actions = pa.table(table.get_add_actions())
        has_vectors = "deletionVectors" in (table.protocol().reader_features or ())
        vectors = live_vectors(self._storage, table.version()) if has_vectors else {}
        ids = {self._path(path): vector.unique_id for path, vector in vectors.items()}
        paths = [self._path(path) for path in actions.column("path").to_pylist()]
        values = []
        if columns.partitioning:
            texts = canon.flatten(actions.column("partition"))
            fields = (columns.schema.field(name) for name in columns.partitioning)
            values = [_empty_as_null(pc.struct_field(texts, f.name).cast(f.type)) for f in fields]
        return log_files(
            paths,
            partition_texts(columns.partitioning, values, len(paths)),
            canon.flatten(actions.column("size_bytes")),
            canon.flatten(actions.column("num_records")),
            [ids.get(path) for path in paths],
        )

    def deleted_rows(self, position: str | None, paths: Sequence[str]) -> dict[str, np.ndarray]:
        with storage_errors(self._storage, "deltalake"):
            assert position is not None  # every state of a Delta log has one
            vectors = live_vectors(self._storage, int(position)).items()
            wanted = set(paths)
            return rows_of(self._storage, {file: v for path, v in vectors if (file := self._path(path)) in wanted})


class _Tail:
    """Consecutive commits.

    count    how many
    files    {(path, deletion vector): the last add, or None if it was removed}
    """

    def __init__(self) -> None:
        self.count = 0
        self.files: dict[tuple[str, str | None], dict | None] = {}

    def add_commit(self, commit: bytes) -> bool:
        """Read the next commit. Return False if it changes more than files."""
        seen = set()
        try:
            for line in commit.splitlines():
                if not line.strip():
                    continue
                for name, action in json.loads(line).items():
                    if name in ("add", "remove"):
                        key = action["path"], vector_id(action.get("deletionVector"))
                        if key in seen or (name == "add" and not _is_well_formed(action)):
                            return False
                        seen.add(key)
                        self.files[key] = action if name == "add" else None
                    elif name not in _CHANGES_NO_FILE:
                        return False
        except _MALFORMED:
            return False
        self.count += 1
        return True

    def has_unique_paths(self) -> bool:
        """Return whether no path is live twice."""
        live = [path for (path, _), action in self.files.items() if action is not None]
        return len(set(live)) == len(live)


def _commit_path(version: int) -> str:
    return f"{LOG_FOLDER}/{version:020d}.json"


def _is_well_formed(add: dict) -> bool:
    return isinstance(add["partitionValues"], dict) and isinstance(add.get("stats"), str | None)


def _row_count(add: dict) -> int | None:
    with contextlib.suppress(*_MALFORMED):
        count = json.loads(add["stats"])["numRecords"]
        return count if isinstance(count, int) and count >= 0 else None  # a statistic, which need not be right
    return None


def _partition_values(texts: list[str | None], field: pa.Field) -> pa.Array:
    """Convert partition values from their texts in a commit. An empty text is null; a time without a zone is UTC."""
    values = _empty_as_null(string_array(texts))
    dtype = field.type
    try:
        if pa.types.is_timestamp(dtype) and dtype.tz is not None:
            plain = pc.replace_substring_regex(values, r"(Z|[+-]00:?00)$", "")
            return plain.cast(pa.timestamp(dtype.unit)).cast(dtype)
        return hive.typed_texts(values.to_pylist(), dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise SchemaError(f"partition column {field.name!r} is {dtype}: {str(error).splitlines()[0]}") from error


def _empty_as_null(values: pa.Array) -> pa.Array:
    if not pa.types.is_string(values.type):
        return values
    return pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)


# -- through deltalake ------------------------------------------------------------------------------------------------


def _delta_table(storage: Storage, version: int | None, options: dict[str, str]) -> Any:
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError
    except ImportError as error:
        raise missing_package("deltalake", "delta") from error
    check_location(storage, "deltalake")
    try:
        return DeltaTable(storage.uri, version=version, storage_options=options or None)
    except TableNotFoundError as error:
        message, cause = first_line_of(storage, error)
        raise NotATableError(f"{storage.uri}: no Delta table there ({message})") from cause


def _columns(table: Any) -> Columns:
    features = set(table.protocol().reader_features or ())
    if not features <= _FEATURES:
        raise NotReadableError(
            f"the Delta table uses {', '.join(sorted(features - _FEATURES))}, which Skipstone does not support"
        )
    metadata = table.metadata()
    schema = normalized_schema(pa.schema(table.schema().to_arrow()))
    fields = json.loads(table.schema().to_json())["fields"]
    mode = metadata.configuration.get("delta.columnMapping.mode", "none")
    if mode not in ("none", "name", "id"):
        raise NotReadableError(f"the Delta table maps its columns by {mode!r}, which Skipstone does not support")
    is_mapped = mode != "none"
    keys = {f["name"]: f["metadata"][_PHYSICAL] if is_mapped else f["name"] for f in fields}
    names = {physical: name for name, physical in keys.items()}
    nested = [each for f in fields if is_mapped for each in _nested_fields(f["type"], (keys[f["name"]],), f["name"])]
    naming = ColumnNaming(names, nested={each.path: each.name for each in nested})
    if mode == "id":
        ids = {f["metadata"][_ID]: f["name"] for f in fields}
        naming = ColumnNaming(None, ids | {each.number: each.table_path for each in nested if each.number is not None})
        nested += [_NestedField((physical,), name, name, None) for physical, name in names.items()]
    inner = {".".join(each.path): f"{each.path[0]}{each.table_path[len(names[each.path[0]]) :]}" for each in nested}
    return Columns(schema, tuple(metadata.partition_columns), keys, naming, inner=inner)


@dataclass(frozen=True)
class _NestedField:
    """A field within a column.

    path      its path in files
    name      its name in the table, and `table_path`, its dotted path there
    number    its field id; None for an element of a list or a map
    """

    path: tuple[str, ...]
    name: str
    table_path: str
    number: int | None


def _nested_fields(dtype: Any, path: tuple[str, ...], table_path: str) -> Iterator[_NestedField]:
    """Yield the fields within a type of a Delta schema, at `path` in files and at `table_path` in the table."""
    if not isinstance(dtype, dict):
        return
    steps = [(f["metadata"].get(_PHYSICAL, f["name"]), f["name"], f["type"], f) for f in dtype.get("fields", ())]
    steps += [(s, s, dtype[name], {}) for name, s in _ELEMENTS.items() if name in dtype]
    for physical, name, inner, field in steps:
        below = _NestedField((*path, physical), name, f"{table_path}.{name}", field.get("metadata", {}).get(_ID))
        yield below
        yield from _nested_fields(inner, below.path, below.table_path)
