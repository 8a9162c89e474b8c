"""`register`, `scan` and `refresh`: the driver checks arguments, where errors are ours, and pins a version."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column

from ..engine.open import open_table
from ..engine.parquet.leaves import top_level
from ..engine.predicates import parse, unknowns
from ..errors import InvalidArgumentError
from .column_tree import columns_needed, quoted
from .formats import activate, watch_formats
from .from_columns import without_unknowns
from .jobs import declared_slots
from .loads import bare_load, check_frame
from .options import FirstRows, Request, encode_predicate
from .parquet_reader import handed_over, reads_much
from .sessions import active, as_column, is_classic, spark_node
from .source import SkipstoneSource, load
from .spark_versions import IS_SPARK_4, check_spark
from .where_text import where_node, where_of
from .wire_types import readable_schema, spark_schema, wire_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ..engine.choices import ScanMode
    from ..engine.scan.request import OrderBy, SortKey

_RESIDUAL_CHARACTERS = 300  # that travel with the load, for `explain`
_FIRST_ROWS_MAX = 100_000  # that one task takes; more are sorted by Spark
_scans: weakref.WeakKeyDictionary[DataFrame, _Scan] = weakref.WeakKeyDictionary()
_registered: weakref.WeakSet[SparkSession] = weakref.WeakSet()  # a second time, Spark warns


@dataclass(frozen=True)
class _Scan:
    """What a DataFrame was asked for, where its load does not say all of it."""

    where: object
    order_by: OrderBy | None
    limit: int | None
    hand_over: bool | None = None
    request: Request | None = None


def register(spark: SparkSession) -> None:
    """Makes the data source "skipstone" known to a session; and from then on, in this process, a plain save work in
    any thread, and a stream of it be refused where it is asked for.

        spark.read.format("skipstone").option("where", "k = 5").load("lake/flights")

    Options: `where` (SQL text), `index_path`, `version`, `storage.*`. `.schema(...)` chooses the columns.
    """
    check_spark("4.0", 'format("skipstone")')
    activate(spark)
    if spark in _registered:
        return
    watch_formats(spark)
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
    path: str | os.PathLike[str],
    where: object = None,
    columns: Sequence[str] | None = None,
    *,
    order_by: OrderBy | None = None,
    limit: int | None = None,
    hand_over: bool | None = None,
    mode: ScanMode = "snapshot",
    index_path: str | os.PathLike[str] | None = None,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The rows of a table that match, as a DataFrame: pruned on the driver, and again in each executor.

    Where much is left, Spark's own Parquet reader reads it, as `read_parquet` does, and `explain` says so.

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
        order_by: what the rows are sorted by, as `Table.scan` takes it: "ts", ("ts", "desc"), or a list of these;
            nulls last where nothing is said.
        limit: at most so many rows: the first ones of `order_by`, else any. Up to 100,000 are taken by one task, which
            passes over files and row groups that cannot hold one of them. More, all of them, and the first of a `where`
            that Spark tests, Spark sorts.
        hand_over: whether Spark's own reader reads the files that are left, wherever it reads the same rows. By default
            where they are local, 128 MB or more in at most 10,000 files, and no index has named rows or row groups. It
            compares the files with the index now; else executors do, when they read.
        mode: "snapshot", in which executors merge slices with logs by the reader of their format; or "read_optimized":
            of slices with logs the bases alone.
        index_path: where the index lies, if not in the table.
        version: which version to read (default: the latest).
        storage_options: what opens an object store; it goes to the executors.

    Raises:
        NotATableError: no index there, or no such version. PredicateError: `where` cannot be read, names no column,
        or (where it is no Column) cannot be tested on rows. SchemaError: `columns` or `order_by` names no column, or
        one is of a type that Spark does not have. InvalidArgumentError: an order, a limit or a mode that is none.
    """
    given = _Scan(where, order_by, limit, hand_over)
    if IS_SPARK_4:
        register(spark)  # also where the rows are handed over: a plain save may follow
    with open_table(path, version=version, index_path=index_path, storage_options=storage_options) as table:
        residual, is_tested = None, False
        if isinstance(where, str | Column):
            node = spark_node(spark, where, table.schema)
            is_tested = bool(unknowns(node))
            # What Spark meant by a text is tested by Spark too, where it says which columns that takes.
            if is_tested or (isinstance(where, str) and is_classic(spark)):
                residual = as_column(spark, where)
            where = without_unknowns(node)
        else:
            where = where_node(where, table.schema)
        plan = table.scan(where, columns, limit=limit, order_by=order_by, mode=mode)
        plan.planning.check_evaluable()
        names, keys = list(plan.columns), plan.planning.order_by
        first = None
        if limit is not None and limit <= _FIRST_ROWS_MAX and not is_tested:
            first, residual = FirstRows(limit, _as_given(keys)), None
        needed = [] if first else [top_level(table.schema, key.column) for key in keys]
        if residual is not None:
            whole = readable_schema(table.schema)
            needed += columns_needed(spark, residual, spark_schema(whole))
        wire = wire_schema(table.schema, list(dict.fromkeys([*names, *needed])))
        sorts = [] if first else [_sort(spark, key, table.schema) for key in keys]
        request = Request(
            path=table.location,
            # a tree, never text: a worker that plans need not load the SQL parser
            predicate=None if where is None else encode_predicate(parse(where)),
            residual=str(residual)[:_RESIDUAL_CHARACTERS] if is_tested else None,
            first_rows=first,
            index_path=None if index_path is None else table.handle.index_storage.uri,
            version=table.version,
            mode=mode,
            log_position=table.handle.log_position,
            parallelism=declared_slots(spark),
            storage_options=table.handle.storage_options,
        )
        result = None
        if first is None and hand_over is not False and (hand_over or reads_much(plan.planning)):
            condition = as_column(spark, given.where) if isinstance(given.where, str | Column) else None
            result = handed_over(spark, table, table.scan(where, wire.names, mode=mode), condition, request)
    if result is None:
        frame = load(spark, request, spark_schema(wire))
        result = frame if residual is None else frame.where(residual)
    if sorts:
        result = result.orderBy(*sorts)
    if limit is not None and first is None:
        result = result.limit(limit)
    if wire.names != names:
        result = result.select(*map(quoted, names))
    _scans[result] = replace(given, request=request)
    return result


def _as_given(keys: Sequence[SortKey]) -> tuple[tuple[str, ...], ...] | None:
    """Sort keys as `Table.scan` takes them."""
    words = [(key.column, *["desc"] * key.is_max, *["nulls_first"] * key.nulls_first) for key in keys]
    return tuple(words) or None


def _sort(spark: SparkSession, key: SortKey, schema: pa.Schema) -> Column:
    """A sort key as Spark's Column."""
    top = top_level(schema, key.column)
    rest = key.column[len(top) + 1 :].split(".") if len(key.column) > len(top) else []
    column: Any = as_column(spark, quoted(top, *rest))
    if key.is_max:
        return column.desc_nulls_first() if key.nulls_first else column.desc_nulls_last()
    return column.asc_nulls_first() if key.nulls_first else column.asc_nulls_last()


def refresh(frame: DataFrame) -> DataFrame:
    """What a DataFrame reads, at the version that is the latest now: a fresh `scan` of the same table, with the same
    `where`, columns and options. The DataFrame itself stays with its version.

    Raises InvalidArgumentError for a DataFrame that is neither a result of `scan` nor a plain load: apply filters and
    joins of Spark's to what this returns. Else as `scan`.
    """
    check_frame(frame, "refresh")
    given = _scans.get(frame)
    load = bare_load(frame) if given is None else None
    request = given.request if given is not None else None if load is None else load.request()
    if request is None:
        raise InvalidArgumentError(
            'refresh() takes what scan(), or spark.read.format("skipstone").load(), returned; refresh that, and apply '
            "filters and joins to the result"
        )
    if given is None:
        first = request.first_rows
        order_by = None if first is None or first.order_by is None else list(first.order_by)
        given = _Scan(where_of(request), order_by, None if first is None else first.limit)
    return scan(
        frame.sparkSession,
        request.path,
        given.where,
        frame.columns,
        order_by=given.order_by,
        limit=given.limit,
        hand_over=given.hand_over,
        mode=request.mode,
        index_path=request.index_path,
        storage_options=request.storage_options,
    )
