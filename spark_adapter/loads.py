"""The loads of ours in a DataFrame's plan, also below joins, filters and subqueries, and their versions.

A classic session's plan lies in the JVM. Over Spark Connect the client's plan is searched: only the server knows what
is behind a view, a table's name or SQL text.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from ..engine.open import open_table
from ..errors import InvalidArgumentError
from .catalyst_tree import items_of, texts_of
from .options import Request
from .source import SkipstoneSource
from .spark_versions import IS_SPARK_4

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Options that `read_parquet` gives to Spark's Parquet reader: Spark keeps them, and uses none.
TABLE_OPTION, VERSION_OPTION = "skipstone.table", "skipstone.version"
REQUEST_OPTION = "skipstone.request"  # of a scan that was handed over to that reader: its own options, as JSON
_NATIVE_OPTIONS = (TABLE_OPTION, VERSION_OPTION, REQUEST_OPTION)
_UNKNOWN_TO_CLIENTS = {
    "spark.connect.SQL": "SQL text",
    "spark.connect.Read.NamedTable": "a table's or a view's name",
    "spark.connect.CachedRemoteRelation": "a checkpoint",
}


def check_frame(frame: object, verb: str) -> None:
    """Raises InvalidArgumentError for what is no DataFrame."""
    if not hasattr(frame, "sparkSession"):
        raise InvalidArgumentError(f"{verb}() takes a DataFrame, not {frame!r}")


@dataclass(frozen=True)
class Load:
    """One load. `leaf` is its node in the JVM's plan; None over Spark Connect."""

    options: dict[str, str]
    leaf: Any = None

    @property
    def is_scan(self) -> bool:
        """False for a load by Spark's own reader: one of `read_parquet`, or a scan that was handed over."""
        return TABLE_OPTION not in self.options

    def request(self) -> Request | None:
        """The request of a scan, handed over or not; None of `read_parquet`."""
        if self.is_scan:
            return Request.from_options(self.options)
        options = self.options.get(REQUEST_OPTION)
        return None if options is None else Request.from_options(json.loads(options))

    def table_id(self) -> str:
        """The id of the table that it reads."""
        if not self.is_scan:
            return self.options[TABLE_OPTION]
        request = Request.from_options(self.options)
        opened = open_table(request.path, index_path=request.index_path, storage_options=request.storage_options)
        with opened as table:
            return table.handle.instant.table_id

    def version(self) -> int:
        """The version that it reads.

        Raises InvalidArgumentError over Spark Connect, where the server chooses a version at each action, unless `scan`
        or option version named one.
        """
        named = self.options.get("version" if self.is_scan else VERSION_OPTION)
        if named is None and self.leaf is not None:
            return _source_of(self.leaf).version
        if named is None:
            raise InvalidArgumentError(
                "which version this DataFrame reads is not known to a client of Spark Connect: load it by scan(), or "
                "give read_version="
            )
        return int(named)


def loads_of(frame: DataFrame) -> Iterator[Load]:
    """Each load of ours in a DataFrame's plan."""
    if hasattr(frame, "_jdf"):
        return _in_jvm(frame._jdf.queryExecution().analyzed())
    return _in_client(frame)


def bare_load(frame: DataFrame) -> Load | None:
    """The load that a DataFrame consists of; None where there is more to its plan."""
    if hasattr(frame, "_jdf"):
        load = load_of(frame._jdf.queryExecution().analyzed())
    else:
        root = _relation_of(frame)
        load = _load_in(root.read.data_source) if root.WhichOneof("rel_type") == "read" else None
    return load if load is not None and load.is_scan else None


def has_unused_filter(frame: DataFrame) -> bool:
    """Whether Spark filters, right above it, a scan that has no predicate of its own; False over Spark Connect."""
    if not hasattr(frame, "_jdf"):
        return False
    waiting = [frame._jdf.queryExecution().optimizedPlan()]
    while waiting:
        node = waiting.pop()
        children = [node.children().apply(i) for i in range(node.children().size())]
        waiting += children
        names = [each.getClass().getSimpleName() for each in (node, *children)]
        if names == ["Filter", "DataSourceV2ScanRelation"]:
            load = load_of(children[0].relation())
            if load is not None and load.is_scan and not {"where", "predicate", "residual"} & load.options.keys():
                return True
    return False


def unseen_in(frame: DataFrame) -> str | None:
    """The first part of a DataFrame's plan that cannot be searched here; None where all can."""
    if hasattr(frame, "_jdf"):
        is_hidden = not IS_SPARK_4 and "MapInArrow" in frame._jdf.queryExecution().analyzed().toString()
        return "mapInArrow, by which scan() reads before PySpark 4" if is_hidden else None
    names = (_name(message) for message in _messages(_relation_of(frame)))
    return next((_UNKNOWN_TO_CLIENTS[name] for name in names if name in _UNKNOWN_TO_CLIENTS), None)


# -- in a JVM ---------------------------------------------------------------------------------------------------------


def _in_jvm(plan: Any) -> Iterator[Load]:
    yield from filter(None, map(load_of, leaves_of(plan)))


def leaves_of(plan: Any) -> Iterator[Any]:
    """The leaves of a plan in the JVM, also of its subqueries."""
    for tree in (plan, *items_of(plan.subqueriesAll())):
        yield from items_of(tree.collectLeaves())


def load_of(leaf: Any) -> Load | None:
    """The load that a leaf of the JVM's plan is; None for others'."""
    kind = leaf.getClass().getSimpleName()
    if kind == "DataSourceV2Relation":
        options = texts_of(leaf.options().asCaseSensitiveMap())
        return Load(options, leaf) if leaf.table().name() == SkipstoneSource.name() or _is_native(options) else None
    if kind == "LogicalRelation" and leaf.relation().getClass().getSimpleName() == "HadoopFsRelation":
        values = {name: leaf.relation().options().get(name) for name in _NATIVE_OPTIONS}
        options = {name: value.get() for name, value in values.items() if value.isDefined()}
        return Load(options, leaf) if _is_native(options) else None
    return None


def _is_native(options: dict[str, str]) -> bool:
    return TABLE_OPTION in options


def pinned_request(load: Load) -> Request:
    """The request of a scan in a JVM's plan, handed over or not, at the version that it reads."""
    request = load.request()
    assert request is not None
    return request if request.version is not None else _source_of(load.leaf).request


def _source_of(leaf: Any) -> SkipstoneSource:
    """The source of a leaf, with the version that it chose when it was made.

    Spark keeps the source, pickled, in a private field. A source that was loaded with a schema is made at its first
    use, which may be now.
    """
    table = leaf.table()
    try:
        (field,) = (f for f in table.getClass().getDeclaredFields() if f.getName() == "ds")
        field.setAccessible(True)
        java: Any = SparkSession.active()._jvm
        schema = java.scala.Option.apply(table.schema())
        created = field.get(table).getOrCreateDataSourceInPython(table.name(), leaf.options(), schema)
        source = pickle.loads(bytes(created.dataSource()))
    except Exception as error:
        raise InvalidArgumentError(
            f"this Spark does not show which version a load reads ({error}): load it by scan(), or give read_version="
        ) from error
    return source


# -- over Spark Connect -----------------------------------------------------------------------------------------------


def _in_client(frame: Any) -> Iterator[Load]:
    for message in _messages(_relation_of(frame)):
        if _name(message) == "spark.connect.Read.DataSource":
            load = _load_in(message)
            if load is not None:
                yield load


def _load_in(read: Any) -> Load | None:
    options = {**dict(read.options), **({"path": read.paths[0]} if read.paths else {})}
    return Load(options) if read.format.lower() == SkipstoneSource.name() or _is_native(options) else None


def _relation_of(frame: Any) -> Any:
    # Not `to_proto`, which compresses a large one.
    return frame._plan.plan(frame.sparkSession.client)


def _name(message: Any) -> str:
    return message.DESCRIPTOR.full_name


def _messages(message: Any) -> Iterator[Any]:
    """A protobuf message and all messages within it, in order; plans are too deep for recursion."""
    waiting = [message]
    while waiting:
        message = waiting.pop()
        yield message
        inner: list[Any] = []
        for field, value in message.ListFields():
            if field.message_type is None:
                continue
            if field.message_type.GetOptions().map_entry:
                value = list(value.values())
            parts = [value] if hasattr(value, "ListFields") else value
            inner.extend(part for part in parts if hasattr(part, "ListFields"))
        waiting.extend(reversed(inner))
