"""Loads of ours in a DataFrame's plan, also below joins, filters and subqueries, and the versions that they are of.

A classic session's plan lies in the JVM. Of Spark Connect the plan as the client sends it is looked through: what is
behind a view, a table's name or SQL text is known to the server alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from ..engine.open import open_table
from ..errors import InvalidArgumentError
from .request import Request
from .source import SkipstoneSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Options of the Parquet reader that `read_parquet` loads by: Spark keeps them, and reads none.
TABLE_OPTION, VERSION_OPTION = "skipstone.table", "skipstone.version"
_UNSEEN = {
    "spark.connect.SQL": "SQL text",
    "spark.connect.Read.NamedTable": "a table's or a view's name",
    "spark.connect.CachedRemoteRelation": "a checkpoint",
}


@dataclass(frozen=True)
class Load:
    """One load. `leaf` is its node in the plan; None over Spark Connect."""

    options: dict[str, str]
    leaf: Any = None

    @property
    def is_scan(self) -> bool:
        """False for what `read_parquet` left to Spark's own reader."""
        return TABLE_OPTION not in self.options

    def request(self) -> Request:
        """What a scan asks for."""
        return Request.from_options(self.options)

    def table_id(self) -> str:
        """The id of the table that it is of."""
        if not self.is_scan:
            return self.options[TABLE_OPTION]
        request = self.request()
        opened = open_table(request.path, index_path=request.index_path, storage_options=request.storage_options)
        with opened as table:
            return table.instant.table_id

    def version(self) -> int:
        """The version that its rows are of.

        Raises InvalidArgumentError where that is not known here: over Spark Connect the server chooses one anew each
        time, unless `scan` did or option version does.
        """
        named = self.options.get("version" if self.is_scan else VERSION_OPTION)
        if named is None and self.leaf is not None:
            return _pinned(self.leaf)
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
    """The load that a DataFrame is, where it is one and nothing else is done with it."""
    if hasattr(frame, "_jdf"):
        load = _load_of(frame._jdf.queryExecution().analyzed())
    else:
        root = _relation_of(frame)
        load = _load_in(root.read.data_source) if root.WhichOneof("rel_type") == "read" else None
    return load if load is not None and load.is_scan else None


def unseen_in(frame: DataFrame) -> str | None:
    """What of a DataFrame's plan cannot be looked into here; None where all can."""
    if hasattr(frame, "_jdf"):
        return None
    names = (_name(message) for message in _messages(_relation_of(frame)))
    return next((_UNSEEN[name] for name in names if name in _UNSEEN), None)


# -- in a JVM ---------------------------------------------------------------------------------------------------------


def _in_jvm(plan: Any) -> Iterator[Load]:
    subqueries = plan.subqueriesAll()
    for one in (plan, *(subqueries.apply(i) for i in range(subqueries.size()))):
        leaves = one.collectLeaves()
        for at in range(leaves.size()):
            load = _load_of(leaves.apply(at))
            if load is not None:
                yield load


def _load_of(leaf: Any) -> Load | None:
    kind = leaf.getClass().getSimpleName()
    if kind == "DataSourceV2Relation":
        options = dict(leaf.options().asCaseSensitiveMap())
        return Load(options, leaf) if leaf.table().name() == SkipstoneSource.name() or _is_native(options) else None
    if kind == "LogicalRelation" and leaf.relation().getClass().getSimpleName() == "HadoopFsRelation":
        told = {name: leaf.relation().options().get(name) for name in (TABLE_OPTION, VERSION_OPTION)}
        options = {name: value.get() for name, value in told.items() if value.isDefined()}
        return Load(options, leaf) if _is_native(options) else None
    return None


def _is_native(options: dict[str, str]) -> bool:
    return TABLE_OPTION in options


def _pinned(leaf: Any) -> int:
    """The version that a source chose when it was made; Spark keeps the source, pickled, and shows it to nobody. One
    that was loaded with a schema is made when it is first asked for, which is now."""
    table = leaf.table()
    try:
        (field,) = (f for f in table.getClass().getDeclaredFields() if f.getName() == "ds")
        field.setAccessible(True)
        java: Any = SparkSession.active()._jvm
        schema = java.scala.Option.apply(table.schema())
        made = field.get(table).getOrCreateDataSourceInPython(table.name(), leaf.options(), schema)
        source = pickle.loads(bytes(made.dataSource()))
    except Exception as error:
        raise InvalidArgumentError(
            f"this Spark does not show which version a load reads ({error}): load it by scan(), or give read_version="
        ) from error
    return source.version


# -- of Spark Connect -------------------------------------------------------------------------------------------------


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
    """A message of protobuf and all within it, in order; plans are too deep for recursion."""
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
