"""What a session of Spark decides: what a text or a Column means, and which data sources it knows; and the relations of
a DataFrame's plan that Skipstone loaded, also below joins, filters and subqueries."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column

from ..engine.open import open_table
from ..engine.predicates import Node
from ..errors import InvalidArgumentError
from . import catalyst
from .columns import from_tree, text_tree, where_node
from .options import Request
from .source import SkipstoneSource
from .spark_semantics import Opaque, Session, Tree
from .wire_types import readable_schema, spark_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# The option of Spark's Parquet reader, which keeps it and does not use it: the options of the scan that it reads, as
# JSON.
REQUEST_OPTION = "skipstone.request"
INT96_CONVERSION = "spark.sql.parquet.int96TimestampConversion"  # shifts times in files that Spark did not write
_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()  # a second time, Spark warns


def register(spark: SparkSession) -> None:
    """Make the data source "skipstone" known to a session. If the thread has no active session, as a thread that Python
    starts, this session becomes the active one of the thread: Spark looks there when `df.write` saves.

        spark.read.format("skipstone").option("where", "k = 5").load("lake/flights")

    Options: `where` (SQL text), `index_path`, `version`, `storage.*`. `.schema(...)` chooses the columns.
    """
    catalyst.activate(spark)
    if spark in _registered:
        return
    with catalyst.active(spark):  # Spark checks the name in the thread's active session
        try:
            spark.dataSource.register(SkipstoneSource)
        except AnalysisException as error:  # Spark may have found `pyspark_skipstone` by itself
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
    _registered.add(spark)


def spark_where(spark: SparkSession, where: str | Column, schema: pa.Schema) -> tuple[Node, set[str] | None]:
    """What a session means by a Column or a text over a table, in our nodes (what is not understood is Unknown), and
    the names of the columns that it reads; None if they are not known. Raises as `spark_tree`."""
    tree, names = spark_tree(spark, where, schema)
    return from_tree(tree, schema, session_of(spark)), names


def spark_tree(spark: SparkSession, where: str | Column, schema: pa.Schema) -> tuple[Tree, set[str] | None]:
    """The tree of a Column or a text, and the names of the columns that it reads; None if they are not known.

    Over Spark Connect, a text is read by our own parser, and a Column prunes nothing.

    Raises PredicateError, with Spark's message, if Spark cannot resolve it.
    """
    if catalyst.is_classic(spark):
        column = catalyst.as_column(spark, where)
        analyzed = catalyst.analyze(spark, column, spark_schema(readable_schema(schema)))
        return analyzed or (Opaque(str(where), "Spark filters by more than an expression"), None)
    if isinstance(where, str):
        return text_tree(where), None
    return Opaque(str(where), "over Spark Connect, a Column is the server's alone"), None


def read_where(spark: SparkSession | None, where: object, schema: pa.Schema) -> object:
    """What `scan` accepts, as `Table.scan` accepts it: a Column and SQL text mean what they mean to Spark. Without a
    session a text is read as an option's text is."""
    if spark is not None and isinstance(where, str | Column):
        return spark_where(spark, where, schema)[0]
    return where_node(where, schema)


def session_of(spark: Any) -> Session:
    """The settings of a session that decide what a predicate means."""
    zone, case = spark.conf.get("spark.sql.session.timeZone"), spark.conf.get("spark.sql.caseSensitive")
    return Session(str(zone), str(case).lower() == "true")


# -- relations of a plan ----------------------------------------------------------------------------------------------


def check_frame(frame: object, verb: str) -> None:
    """Raise InvalidArgumentError for anything but a DataFrame."""
    if not hasattr(frame, "sparkSession"):
        raise InvalidArgumentError(f"{verb}() accepts a DataFrame, not {frame!r}")


@dataclass(frozen=True)
class Relation:
    """One load."""

    options: dict[str, str]

    @property
    def is_scan(self) -> bool:
        """False for a load by Spark's own Parquet reader."""
        return REQUEST_OPTION not in self.options

    def request(self) -> Request:
        """The scan, by either reader."""
        return Request.from_options(self.options if self.is_scan else json.loads(self.options[REQUEST_OPTION]))

    def table_id(self) -> str:
        """The id of the table that it reads."""
        request = self.request()
        opened = open_table(request.path, index_path=request.index_path, storage_options=request.storage_options)
        with opened as table:
            return table.handle.instant.table_id

    def version(self) -> int:
        """The version that it reads. Raises InvalidArgumentError for a load without option version: the process in
        which Spark made the source chose it."""
        version = self.request().version
        if version is None:
            raise InvalidArgumentError(
                'which version a load without option "version" reads is not known here: read the rows by scan(), or '
                "pass read_version="
            )
        return version


def relation_of(leaf: Any) -> Relation | None:
    """The relation that a leaf of the JVM's plan is; None for those of others."""
    load = catalyst.load_options(leaf, (REQUEST_OPTION,))
    if load is None:
        return None
    source, options = load
    return Relation(options) if source.lower() == SkipstoneSource.name() or REQUEST_OPTION in options else None


def find_relations(frame: DataFrame) -> Iterator[Relation]:
    """Each relation of Skipstone in the plan of a DataFrame of a classic session."""
    for leaf in catalyst.leaves_of(catalyst.analyzed_plan(frame)):
        relation = relation_of(leaf)
        if relation is not None:
            yield relation
