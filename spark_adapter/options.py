"""What a load or a save asks for, as the options of a data source: texts, which is all that Spark passes on.

A load:

    path         the table's directory
    where        SQL text: which rows; or what `predicate` made
    timeZone     of the text: the zone of times that name none; UTC, or the text may not depend on it
    caseSensitive  of the text: whether names are taken with their case (true, false); where absent, it may not matter
    index_path   where the index lies, if not in the table
    version      which version; the latest where absent
    savepoint    the version of a savepoint, by its name
    asOf         the version that was the latest then: 2026-01-05T00:00:00Z, with a zone
    mode         "read_optimized": of slices with logs the bases alone; "snapshot" where absent
    log_position written with the version: which state of another format's log is read with it
    storage.*    what opens an object store, each under its own name: storage.region, storage.aws_secret_access_key;
                 Spark hides those of secrets where it shows options
    predicate    written by `scan`, in place of `where`: a pickled predicate, base64
    parallelism  written by `scan`: how many tasks run at a time; the driver's cores where absent
    residual     written by `scan`, for `explain` alone: what Spark tests besides
    first_rows   written by `scan`: a limit, and maybe an order, in JSON: one task reads the first rows
    columns      written by `view`: which columns, a list in JSON; all where absent

A save:

    path                      the table's directory; where nothing is, a table is made
    partitioning              of a table that is made: its partition columns, "year,month"
    key                       makes a retry of the same save commit once
    partitionOverwriteMode    of mode("overwrite"): "static" (every file goes) or "dynamic" (those of the partitions
                              that get rows); where absent, the session's setting (spark.sql.sources.*)
    readVersion               of mode("overwrite"): the version that the rows were read from; what others changed since
                              in the partitions that are overwritten is a conflict. Written by `save`
    row_group_rows, row_group_bytes, file_rows, file_bytes    as `Transaction.task_spec`; bytes also as 64m, 1g
    index_path, storage.*     as in a load

Any other option is refused: a `were` that nobody reads would return every row, and a `partition_by` would leave a table
without partitions.

In SQL, a view keeps its options, and Spark ignores others given where it is read (`SELECT ... FROM view WITH (...)`
returns what the view's own options say):

    CREATE TEMPORARY VIEW v USING skipstone OPTIONS (path 'lake/flights', where "tail_num = 'N14228'")

A table of Spark's catalog keeps its columns and no option: PySpark 4.3 passes options to a source of Python when the
table is made, and not when it is read. There each read gives them again, with the path; without it the read is refused:

    CREATE TABLE flights USING skipstone OPTIONS (path 'lake/flights')
    SELECT * FROM flights WITH (path = 'lake/flights', where = "tail_num = 'N14228'")
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, PredicateError

if TYPE_CHECKING:  # the process in which Spark makes a source needs no predicates, and so no Arrow
    from ..engine.choices import ScanMode
    from ..engine.storage import StorageOptions

_PACKAGE = __name__.partition(".")[0]
_TREE_MODULES = {f"{_PACKAGE}.engine.predicates.{name}" for name in ("ast", "literals", "operands")} | {
    f"{_PACKAGE}.spark_adapter.{name}" for name in ("column_tree", "spark_semantics", "where_text")
}
UTC_NAMES = frozenset({"UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z", "+00:00", "-00:00", "UTC+00:00", "Etc/UCT", "Zulu"})
# What pickles of Arrow types call: a cast names one.
_ARROW_TYPES = frozenset(
    {"type_for_alias", "timestamp", "duration", "time32", "time64", "binary", "dictionary", "struct", "map_", "field"}
    | {"decimal32", "decimal64", "decimal128", "decimal256", "list_", "large_list", "list_view", "large_list_view"}
)
STORAGE_PREFIX = "storage."
_WRITTEN_BY_US = ("log_position", "predicate", "parallelism", "residual", "first_rows", "columns")
_OPTIONS_OF_LOADS = (
    "path",
    "where",
    "timeZone",
    "caseSensitive",
    "index_path",
    "version",
    "savepoint",
    "asOf",
    "mode",
    *_WRITTEN_BY_US,
)
_LOST = frozenset(
    {"where", "timezone", "casesensitive", "index_path", "version", "savepoint", "asof", "mode"}
    | {"log_position", "predicate"}
)  # by a table of Spark's catalog
OVERWRITE_MODE, READ_VERSION = "partitionOverwriteMode", "readVersion"
_SIZES = ("row_group_rows", "row_group_bytes", "file_rows", "file_bytes")
_OPTIONS_OF_SAVES = ("path", "partitioning", "key", OVERWRITE_MODE, READ_VERSION, *_SIZES, "index_path")
PREDICATE_PREFIX = "skipstone:predicate:"  # of option where: what follows is no SQL
_FIELDS = {
    "timeZone": "time_zone",
    "caseSensitive": "case_sensitive",
    "asOf": "as_of",
}  # of a Request
_BYTES = re.compile(r"([0-9]+)\s*([kmg])?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _no_options() -> StorageOptions:
    # imported where it is needed: Spark imports this module for people who ask for other sources, too
    from ..engine.storage import StorageOptions

    return StorageOptions()


@dataclass(frozen=True)
class FirstRows:
    """At most `limit` rows, the first ones of an order as `Table.scan` takes it; any, without one."""

    limit: int
    order_by: tuple[tuple[str, ...], ...] | None = None

    def to_text(self) -> str:
        """The text of option first_rows."""
        return json.dumps([self.limit, self.order_by])

    @classmethod
    def from_text(cls, text: str | None) -> FirstRows | None:
        """The inverse of `to_text`. Raises InvalidArgumentError for a text that it did not make."""
        if text is None:
            return None
        try:
            limit, order_by = json.loads(text)
            return cls(int(limit), None if order_by is None else tuple(map(tuple, order_by)))
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(f"option first_rows is written by scan(), not {text!r}") from error


@dataclass(frozen=True)
class Request:
    """One load. `predicate` is a node's pickle as text; at most one of it and `where` is there, and one of `version`,
    `savepoint` and `as_of`."""

    path: str
    where: str | None = None
    time_zone: str | None = None
    case_sensitive: bool | None = None
    predicate: str | None = None
    index_path: str | None = None
    version: int | None = None
    savepoint: str | None = None
    as_of: dt.datetime | None = None
    mode: ScanMode = "snapshot"
    log_position: str | None = None
    parallelism: int | None = None
    residual: str | None = None
    first_rows: FirstRows | None = None
    columns: tuple[str, ...] | None = None
    storage_options: StorageOptions = field(default_factory=_no_options)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Request:
        """The request that options mean. Raises InvalidArgumentError for one that is unknown, missing or malformed."""
        values = {name.lower(): value for name, value in options.items()}
        if "provider" in values:  # CREATE TABLE: Spark keeps the columns, and shows the options once
            names = {name.removeprefix("option.") for name in values}
            lost = sorted(name for name in names if name in _LOST or name.startswith(STORAGE_PREFIX))
            if lost:
                raise InvalidArgumentError(
                    f"Spark reads a catalog's table without the options that it was made with, so {lost[0]} would be "
                    "lost: give it where the table is read, SELECT ... FROM name WITH (path = '...', where = '...'); "
                    "or say CREATE TEMPORARY VIEW name USING skipstone OPTIONS (...), which keeps its options"
                )
            values = {name: value for name, value in values.items() if name == "path"}
        unknown = _unknown_options(values, _OPTIONS_OF_LOADS)
        if unknown and unknown != ["paths"]:
            raise InvalidArgumentError(
                f"option {unknown[0]!r} is not known to the data source skipstone; it takes "
                f"{', '.join(_OPTIONS_OF_LOADS[:9])}, {STORAGE_PREFIX}*"
            )
        if not values.get("path"):
            raise InvalidArgumentError(
                'the data source skipstone reads one directory: .load("path/of/the/table"), or, of a table of Spark\'s '
                "catalog, SELECT ... FROM name WITH (path = 'path/of/the/table')"
            )
        if "where" in values and "predicate" in values:
            raise InvalidArgumentError("give option where or option predicate, not both")
        if len({"version", "savepoint", "asof"} & values.keys()) > 1:
            raise InvalidArgumentError("give one of the options version, savepoint and asOf")
        where, predicate = values.get("where"), values.get("predicate")
        if where is not None and where.startswith(PREDICATE_PREFIX):
            predicate, where = where.removeprefix(PREDICATE_PREFIX), None
        return cls(
            path=local_path(values["path"]),
            where=where,
            time_zone=_time_zone(values.get("timezone")),
            case_sensitive=_flag("caseSensitive", values.get("casesensitive")),
            predicate=predicate,
            index_path=local_path(values["index_path"]) if "index_path" in values else None,
            version=_number("version", values.get("version")),
            savepoint=values.get("savepoint"),
            as_of=_moment(values.get("asof")),
            mode=_scan_mode(values.get("mode", "snapshot")),
            log_position=values.get("log_position"),
            parallelism=_number("parallelism", values.get("parallelism")),
            residual=values.get("residual"),
            first_rows=FirstRows.from_text(values.get("first_rows")),
            columns=_columns(values.get("columns")),
            storage_options=_storage_options(values),
        )

    def to_options(self) -> dict[str, str]:
        """The options that mean this request."""
        values = {name: getattr(self, _FIELDS.get(name, name)) for name in _OPTIONS_OF_LOADS}
        values["columns"] = None if self.columns is None else json.dumps(self.columns)
        values["first_rows"] = None if self.first_rows is None else self.first_rows.to_text()
        storage = {f"{STORAGE_PREFIX}{name}": value for name, value in self.storage_options.items()}
        return {name: str(value) for name, value in values.items() if value is not None} | storage


@dataclass(frozen=True)
class WriteRequest:
    """One save. `partitioning` is None where the option is absent, `is_dynamic` where the session decides."""

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
        values = {name.lower(): value for name, value in options.items()}
        unknown = _unknown_options(values, _OPTIONS_OF_SAVES)
        if unknown:
            raise InvalidArgumentError(
                f"option {unknown[0]!r} is not known where the data source skipstone writes; it takes "
                f"{', '.join(_OPTIONS_OF_SAVES)}, {STORAGE_PREFIX}*"
            )
        if not values.get("path"):
            raise InvalidArgumentError(
                'the data source skipstone writes to a directory: .save("path/of/the/table"); to a table of Spark\'s '
                "catalog it cannot, since Spark does not pass on where that lies"
            )
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
    """A Node or a SparkPredicate as the text of an option, which a worker reads without the SQL parser."""
    return base64.b64encode(pickle.dumps(node)).decode("ascii")


def decode_predicate(text: str) -> Any:
    """The inverse of `encode_predicate`. Raises PredicateError for a text that it did not make."""
    from ..engine.predicates import Node

    try:
        node = _PredicateUnpickler(io.BytesIO(base64.b64decode(text, validate=True))).load()
    except Exception as error:  # a pickle may fail with anything
        raise PredicateError(f"option predicate is written by scan() and cannot be read here: {error}") from error
    if not isinstance(node, Node) and type(node).__name__ != "SparkPredicate":
        raise PredicateError(f"option predicate holds a {type(node).__name__}, not a predicate; use option where")
    return node


class _PredicateUnpickler(pickle.Unpickler):
    """Loads the classes of predicates and nothing else: whoever may write SQL may write an option."""

    def find_class(self, module: str, name: str) -> object:
        if module in _TREE_MODULES and "." not in name:
            kind = super().find_class(module, name)
            if isinstance(kind, type) and kind.__module__ == module:
                return kind
        elif (module, name) == ("decimal", "Decimal") or (module == "pyarrow.lib" and name in _ARROW_TYPES):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a predicate")


def _unknown_options(values: Mapping[str, str], accepted: Sequence[str]) -> list[str]:
    """Option names (in lower case) that are neither in `accepted` nor for the storage, sorted."""
    lowered = {name.lower() for name in accepted}
    return sorted(name for name in values if name not in lowered and not name.startswith(STORAGE_PREFIX))


def _storage_options(values: Mapping[str, str]) -> StorageOptions:
    """The options for the storage, without their prefix."""
    from ..engine.storage import StorageOptions

    return StorageOptions(
        {name.removeprefix(STORAGE_PREFIX): value for name, value in values.items() if name.startswith(STORAGE_PREFIX)}
    )


def local_path(path: str) -> str:
    """Hadoop writes file:/a/b for what is file:///a/b elsewhere."""
    return path.removeprefix("file:") if path.startswith("file:/") and not path.startswith("file://") else path


def _columns(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    try:
        names = json.loads(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(
            f"option columns is a list of names in JSON, not {text!r}; .schema(...) chooses columns, too"
        )
    return tuple(names)


def _number(name: str, text: str | None) -> int | None:
    """The number in an option, None where it is absent. Raises InvalidArgumentError for anything but a number."""
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise InvalidArgumentError(f"option {name} is a whole number from 1 on, not {text!r}")
    return int(text)


def _scan_mode(text: str) -> ScanMode:
    if text not in ("snapshot", "read_optimized"):
        raise InvalidArgumentError(f"option mode is snapshot or read_optimized, not {text!r}")
    return "read_optimized" if text == "read_optimized" else "snapshot"


def _moment(text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        moment = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidArgumentError(f"option asOf is a time with its zone, as 2026-01-05T00:00:00Z, not {text!r}")
    return moment


def _time_zone(text: str | None) -> str | None:
    if text is not None and text not in UTC_NAMES:
        raise InvalidArgumentError(
            f"option timeZone is UTC, not {text!r}: zones differ between machines; make the predicate where the "
            "session is, by sks.predicate(spark, text)"
        )
    return text


def _flag(name: str, text: str | None) -> bool | None:
    if text is not None and text.lower() not in ("true", "false"):
        raise InvalidArgumentError(f"option {name} is true or false, not {text!r}")
    return None if text is None else text.lower() == "true"


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
