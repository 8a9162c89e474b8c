"""`register`, `scan` and `refresh`: the driver checks arguments, where errors are ours, and pins a version."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column

from ..engine.open import open_table
from ..engine.predicates import Node, parse, unknowns
from ..errors import InvalidArgumentError
from .catalyst_tree import meaning_of
from .column_tree import columns_needed, quoted
from .from_columns import from_column, from_tree, without_unknowns
from .jobs import known_slots
from .loads import bare_load
from .options import Request, encode_predicate
from .source import SkipstoneSource
from .spark_semantics import Session
from .where_text import where_node, where_of
from .wire_types import readable_schema, spark_schema, wire_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_RESIDUAL_CHARACTERS = 300  # that travel with the load, for `explain`
_residuals: weakref.WeakKeyDictionary[DataFrame, tuple[object, DataFrame]] = weakref.WeakKeyDictionary()
_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()  # a second time, Spark warns


def register(spark: SparkSession) -> None:
    """Makes the data source "skipstone" known to a session; and the session the active one of this thread, where the
    thread has none.

        spark.read.format("skipstone").option("where", "k = 5").load("lake/flights")

    Spark looks for a data source of Python in the thread's active session, and a thread that Python starts has none. So
    in such a thread call this before a plain save, or use `save`.

    Options: `where` (SQL text), `index_path`, `version`, `storage.*`. `.schema(...)` chooses the columns.
    """
    if hasattr(spark, "_jsparkSession"):
        sessions = _sessions(spark)
        if not sessions.getActiveSession().isDefined():
            sessions.setActiveSession(spark._jsparkSession)
    if spark in _registered:
        return
    if not _try_register(spark):
        # Spark checks the name in the thread's active session, which need not be this one.
        with active(spark):
            _try_register(spark)
    _registered.add(spark)


def _try_register(spark: SparkSession) -> bool:
    """False where the name is registered already, as it is where Spark found `pyspark_skipstone` by itself."""
    try:
        spark.dataSource.register(SkipstoneSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        return False
    return True


def scan(
    spark: SparkSession,
    path: str | os.PathLike,
    where: object = None,
    columns: Sequence[str] | None = None,
    *,
    index_path: str | os.PathLike | None = None,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The rows of a table that match, as a DataFrame: pruned on the driver, and again in each executor.

    Each call is a load of its own, on the version that is the latest now; the DataFrame stays with that version
    (`refresh` loads it anew).

    Args:
        path: the table's directory; executors must see it under the same name.
        where: a PySpark Column, classic or of Spark Connect: the rows are those of `spark.read.parquet(...)` with
            `.where(column)`. The parts that we understand prune; where a part is not understood (functions, arithmetic,
            a UDF) Spark tests the remaining rows by the whole Column. Or SQL text, which means what `F.expr(text)`
            means in this session: its time zone, case sensitivity, ANSI mode and functions are Spark's.
            Or what `predicate` made; or pyarrow tuples, a `col` predicate or a pyarrow expression, which mean what they
            mean to `Table.scan`. All of it must be understood. None for every row.
        columns: what to read (default: all), in this order; none at all gives rows that can be counted.
        index_path: where the index lies, if not in the table.
        version: which version to read (default: the latest).
        storage_options: what opens an object store; it goes to the executors.

    Raises:
        NotATableError: no index there, or no such version. PredicateError: `where` cannot be read, names no column,
        or (where it is no Column) cannot be tested on rows. SchemaError: `columns` names no column, or one is of a
        type that Spark does not have.
    """
    given = where
    with open_table(path, version=version, index_path=index_path, storage_options=storage_options) as table:
        residual, is_tested = None, False
        if isinstance(where, str | Column):
            node = _spark_node(spark, where, table.schema)
            is_tested = bool(unknowns(node))
            # What Spark meant by a text is tested by Spark too, where it says which columns that takes.
            if is_tested or (isinstance(where, str) and _is_classic(spark)):
                residual = as_column(spark, where)
            where = without_unknowns(node)
        else:
            where = where_node(where, table.schema)
        plan = table.scan(where, columns)
        plan.planning.check_evaluable()
        names = list(plan.columns)
        wire = wire_schema(table.schema, names)
        if residual is not None:
            whole = readable_schema(table.schema)
            needed = columns_needed(spark, residual, spark_schema(whole))
            wire = wire_schema(table.schema, [*names, *(name for name in needed if name not in names)])
        request = Request(
            path=table.location,
            # a tree, never text: a worker that plans need not load the SQL parser
            predicate=None if where is None else encode_predicate(parse(where)),
            residual=str(residual)[:_RESIDUAL_CHARACTERS] if is_tested else None,
            index_path=None if index_path is None else table.handle.index_storage.uri,
            version=table.version,
            log_position=table.handle.log_position,
            parallelism=known_slots(spark),
            storage_options=table.handle.storage_options,
        )
    register(spark)
    frame = spark.read.format(SkipstoneSource.name()).schema(spark_schema(wire)).options(**request.to_options()).load()
    if residual is None:
        return frame
    filtered = frame.where(residual)
    result = filtered if wire.names == names else filtered.select(*map(quoted, names))
    _residuals[result] = given, frame
    return result


def refresh(frame: DataFrame) -> DataFrame:
    """What a DataFrame reads, at the version that is the latest now: a fresh `scan` of the same table, with the same
    `where`, columns and options. The DataFrame itself stays with its version.

    Raises InvalidArgumentError for a DataFrame that is neither a result of `scan` nor a plain load: apply filters and
    joins of Spark's to what this returns. Else as `scan`.
    """
    where, loaded = _residuals.get(frame, (None, frame))
    load = bare_load(loaded)
    if load is None:
        raise InvalidArgumentError(
            'refresh() takes what scan(), or spark.read.format("skipstone").load(), returned; refresh that, and apply '
            "filters and joins to the result"
        )
    request = load.request()
    return scan(
        frame.sparkSession,
        request.path,
        where_of(request) if where is None else where,
        frame.columns,
        index_path=request.index_path,
        storage_options=request.storage_options,
    )


def read_where(spark: SparkSession | None, where: object, schema: pa.Schema) -> object:
    """What `scan` may be given, as `Table.scan` takes it: a Column and SQL text mean what they mean to Spark. Without a
    session a text is read as an option's is."""
    if isinstance(where, Column) or (isinstance(where, str) and spark is not None):
        return _spark_node(spark, where, schema)
    return where_node(where, schema)


def as_column(spark: SparkSession, where: str | Column) -> Column:
    """A text as the Column that it is to a session."""
    if isinstance(where, Column):
        return where
    if _is_classic(spark):
        from pyspark.sql.functions import expr
    else:
        from pyspark.sql.connect.functions import expr
    return expr(where)


def session_of(spark: Any) -> Session:
    """The settings of a session that decide what a predicate means."""
    zone, case = spark.conf.get("spark.sql.session.timeZone"), spark.conf.get("spark.sql.caseSensitive")
    # Unset, it follows the ANSI mode.
    legacy = spark.conf.get("spark.sql.legacy.nullInEmptyListBehavior", None)
    is_null = str(legacy).lower() == "true"
    if legacy is None:
        is_null = str(spark.conf.get("spark.sql.ansi.enabled")).lower() == "false"
    return Session(str(zone), str(case).lower() == "true", is_null)


def _spark_node(spark: Any, where: str | Column, schema: pa.Schema) -> Node:
    """What a session's Spark means by a Column or a text; what is not understood is Unknown."""
    if isinstance(where, str) and _is_classic(spark):
        tree = meaning_of(spark, as_column(spark, where), spark_schema(readable_schema(schema)))
        return from_tree(tree, schema, session_of(spark))
    return from_column(as_column(spark, where), schema, session_of(spark))


def _is_classic(spark: Any) -> bool:
    return hasattr(spark, "_jsparkSession")


@contextlib.contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Within, a session is the active one of this thread; Spark Connect needs none."""
    if not hasattr(spark, "_jsparkSession"):
        yield
        return
    sessions = _sessions(spark)
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _sessions(spark: Any) -> Any:
    return spark._jvm.org.apache.spark.sql.classic.SparkSession
