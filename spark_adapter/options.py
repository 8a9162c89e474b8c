"""The options of a load and of a save: texts, which is all that Spark passes to a data source.

    of a load     path, where (SQL text, or what `predicate` returned), index_path, mode, version
    of a save     path, partitioning (of a new table: "year,month"), key (a retry commits once), partitionOverwriteMode,
                  readVersion (of an overwrite: the version that the rows come from), row_group_rows, row_group_bytes,
                  file_rows, file_bytes (also as 64m, 1g), index_path
    of both       storage.*, what opens an object store; Spark hides those of secrets when it shows options
    written by    log_position (which state of another format's log is read with the version), parallelism, residual
    `scan`        (what Spark tests, for `explain`)

Any other option is refused: a `were` that is ignored would return every row.

In SQL a temporary view keeps its options. A table of Spark's catalog is refused: Spark keeps its columns and no option.
"""

from __future__ import annotations

import base64
import io
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, PredicateError

if TYPE_CHECKING:  # the process in which Spark makes a source needs no predicates, and so no Arrow
    from ..engine.choices import ScanMode
    from ..engine.storage import StorageOptions
    from ..engine.table import Table

_PACKAGE = __name__.partition(".")[0]
_TREE_MODULES = {f"{_PACKAGE}.engine.predicates.{name}" for name in ("ast", "literals")} | {
    f"{_PACKAGE}.spark_adapter.{name}" for name in ("spark_semantics", "columns")
}
# What pickles of Arrow types call: a cast names one.
_ARROW_TYPES = frozenset(
    {"type_for_alias", "timestamp", "duration", "time32", "time64", "binary", "dictionary", "struct", "map_", "field"}
    | {"decimal32", "decimal64", "decimal128", "decimal256", "list_", "large_list", "list_view", "large_list_view"}
)
STORAGE_PREFIX = "storage."
_WRITTEN_BY_US = ("log_position", "parallelism", "residual")
_OPTIONS_OF_LOADS = ("path", "where", "index_path", "version", "mode", *_WRITTEN_BY_US)
OVERWRITE_MODE, READ_VERSION = "partitionOverwriteMode", "readVersion"
_SIZES = ("row_group_rows", "row_group_bytes", "file_rows", "file_bytes")
_OPTIONS_OF_SAVES = ("path", "partitioning", "key", OVERWRITE_MODE, READ_VERSION, *_SIZES, "index_path")
_PREDICATE_PREFIX = "skipstone:predicate:"  # of option where: what follows is no SQL
_BYTES = re.compile(r"([0-9]+)\s*([kmg])?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _no_options() -> StorageOptions:
    # imported where it is needed: Spark imports this module also for people who use other sources
    from ..engine.storage import StorageOptions

    return StorageOptions()


@dataclass(frozen=True)
class Request:
    """One load. `where` is SQL, or what `encode_predicate` returned."""

    path: str
    where: str | None = None
    index_path: str | None = None
    version: int | None = None
    mode: ScanMode = "snapshot"
    log_position: str | None = None
    parallelism: int | None = None
    residual: str | None = None
    storage_options: StorageOptions = field(default_factory=_no_options)

    @classmethod
    def of(cls, table: Table, **more: Any) -> Request:
        """The request for a version that is open. `more`: other fields."""
        return cls(
            path=table.location,
            index_path=table.handle.index_storage.uri,
            version=table.version,
            log_position=table.handle.log_position,
            storage_options=table.handle.storage_options,
            **more,
        )

    def open(self) -> Table:
        """The table at the version of the request."""
        from ..engine.open import open_pair

        return open_pair(self.path, self.version, self.log_position, self.index_path, self.storage_options)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Request:
        """The request that options mean. Raises InvalidArgumentError for one that is unknown, missing or malformed."""
        if "provider" in map(str.lower, options):  # CREATE TABLE
            raise InvalidArgumentError(
                "Spark reads a table of its catalog without the options that it was created with: CREATE TEMPORARY "
                "VIEW name USING skipstone OPTIONS (path '...') keeps them"
            )
        values = _checked(options, _OPTIONS_OF_LOADS, "the data source skipstone reads one directory: .load(path)")
        return cls(
            path=local_path(values["path"]),
            where=values.get("where"),
            index_path=local_path(values["index_path"]) if "index_path" in values else None,
            version=_number("version", values.get("version")),
            mode=_scan_mode(values.get("mode", "snapshot")),
            log_position=values.get("log_position"),
            parallelism=_number("parallelism", values.get("parallelism")),
            residual=values.get("residual"),
            storage_options=_storage_options(values),
        )

    def to_options(self) -> dict[str, str]:
        """The options that mean this request."""
        values = {name: getattr(self, name) for name in _OPTIONS_OF_LOADS}
        storage = {f"{STORAGE_PREFIX}{name}": value for name, value in self.storage_options.items()}
        return {name: str(value) for name, value in values.items() if value is not None} | storage


@dataclass(frozen=True)
class WriteRequest:
    """One save. `partitioning` is None if the option is absent, `is_dynamic` if the session decides."""

    path: str
    partitioning: tuple[str, ...] | None = None
    key: str | None = None
    is_dynamic: bool | None = None
    read_version: int | None = None
    index_path: str | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    storage_options: StorageOptions = field(default_factory=_no_options)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> WriteRequest:
        """The save that options mean. Raises InvalidArgumentError for one that is unknown, missing or malformed."""
        values = _checked(options, _OPTIONS_OF_SAVES, "the data source skipstone writes to a directory: .save(path)")
        return cls(
            path=local_path(values["path"]),
            partitioning=_names(values.get("partitioning")),
            key=values.get("key"),
            is_dynamic=_mode(values.get(OVERWRITE_MODE.lower())),
            read_version=_number(READ_VERSION, values.get(READ_VERSION.lower())),
            index_path=local_path(values["index_path"]) if "index_path" in values else None,
            sizes={name: _size(name, values[name]) for name in _SIZES if name in values},
            storage_options=_storage_options(values),
        )


def encode_predicate(node: object) -> str:
    """A Node or a SparkPredicate as the text of option where, which a worker reads without the SQL parser."""
    return _PREDICATE_PREFIX + base64.b64encode(pickle.dumps(node)).decode("ascii")


def decode_predicate(text: str) -> Any:
    """The inverse of `encode_predicate`; None for SQL. Raises PredicateError for a predicate that it did not make."""
    from ..engine.predicates import Node

    if not text.startswith(_PREDICATE_PREFIX):
        return None
    try:
        data = base64.b64decode(text.removeprefix(_PREDICATE_PREFIX), validate=True)
        node = _PredicateUnpickler(io.BytesIO(data)).load()
    except Exception as error:  # a pickle may fail with anything
        raise PredicateError(f"option where is a predicate of scan() and cannot be read here: {error}") from error
    if not isinstance(node, Node) and type(node).__name__ != "SparkPredicate":
        raise PredicateError(f"option where is a {type(node).__name__}, not a predicate; write SQL")
    return node


class _PredicateUnpickler(pickle.Unpickler):
    """Load the classes of predicates and nothing else: options may be untrusted, because SQL text can set them."""

    def find_class(self, module: str, name: str) -> object:
        if module in _TREE_MODULES and "." not in name:
            kind = super().find_class(module, name)
            if isinstance(kind, type) and kind.__module__ == module:
                return kind
        elif (module, name) == ("decimal", "Decimal") or (module == "pyarrow.lib" and name in _ARROW_TYPES):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a predicate")


def _checked(options: Mapping[str, str], accepted: Sequence[str], needs_path: str) -> dict[str, str]:
    """The options by names in lower case. Raises InvalidArgumentError for one that is unknown, or without path."""
    values = {name.lower(): value for name, value in options.items()}
    lowered = {name.lower() for name in accepted}
    unknown = sorted(name for name in values if name not in lowered and not name.startswith(STORAGE_PREFIX))
    if unknown and unknown != ["paths"]:
        shown = ", ".join(name for name in accepted if name not in _WRITTEN_BY_US)
        raise InvalidArgumentError(f"option {unknown[0]!r} is not known; there are {shown}, {STORAGE_PREFIX}*")
    if not values.get("path"):
        raise InvalidArgumentError(needs_path)
    return values


def _storage_options(values: Mapping[str, str]) -> StorageOptions:
    """The options for the storage, without their prefix."""
    from ..engine.storage import StorageOptions

    return StorageOptions(
        {name.removeprefix(STORAGE_PREFIX): value for name, value in values.items() if name.startswith(STORAGE_PREFIX)}
    )


def local_path(path: str) -> str:
    """Hadoop writes file:/a/b for what is file:///a/b elsewhere."""
    return path.removeprefix("file:") if path.startswith("file:/") and not path.startswith("file://") else path


def _number(name: str, text: str | None) -> int | None:
    """The number in an option, None if it is absent. Raises InvalidArgumentError for anything but a number."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InvalidArgumentError(f"option {name} is a whole number from 1 on, not {text!r}")
    return int(text)


def _scan_mode(text: str) -> ScanMode:
    if text not in ("snapshot", "read_optimized"):
        raise InvalidArgumentError(f"option mode is snapshot or read_optimized, not {text!r}")
    return "read_optimized" if text == "read_optimized" else "snapshot"


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _mode(text: str | None) -> bool | None:
    if text is not None and text.lower() not in ("static", "dynamic"):
        raise InvalidArgumentError(f"option {OVERWRITE_MODE} is static or dynamic, not {text!r}")
    return None if text is None else text.lower() == "dynamic"


def _size(name: str, text: str) -> int:
    match = _BYTES.fullmatch(text.strip()) if text.isascii() else None
    if match is None or (match[2] and not name.endswith("_bytes")) or int(match[1]) < 1:
        unit = ", with k, m or g after it if you like" if name.endswith("_bytes") else ""
        raise InvalidArgumentError(f"option {name} is a whole number from 1 on{unit}, not {text!r}")
    return int(match[1]) * _UNITS[(match[2] or "").lower()]
