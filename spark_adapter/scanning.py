"""`scan`, `refresh` and `view`: the driver checks arguments, pins a version, plans, and chooses the reader.

Spark reads the rows through the data source "skipstone", or, if much is left, by its own Parquet reader.
"""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql import Column

from ..engine.open import open_table
from ..engine.parquet.leaves import leaf_array, top_level
from ..engine.predicates import And, col, parse, unknowns
from ..errors import InvalidArgumentError, NotReadableError, PredicateError, SchemaError
from . import catalyst
from .columns import quoted, where_node, without_unknowns
from .options import Request, encode_predicate
from .sessions import INT96_CONVERSION, check_frame, register, spark_where
from .shares import can_check_files, check_files, is_bulk_read
from .source import load
from .spark_versions import default_parallelism
from .wire_types import readable_schema, spark_schema, wire_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..engine.choices import ScanMode
    from ..engine.scan.request import OrderBy, SortKey
    from ..engine.table import Table

_RESIDUAL_CHARACTERS = 300  # that travel with the load, for `explain`
_FIRST_ROWS_MAX = 100_000  # of which the last key is looked up first
# How each result of `scan` is loaded again.
_scans: weakref.WeakKeyDictionary[DataFrame, Callable[[], DataFrame]] = weakref.WeakKeyDictionary()


def scan(
    spark: SparkSession,
    path: str | os.PathLike[str],
    where: object = None,
    columns: Sequence[str] | None = None,
    *,
    order_by: OrderBy | None = None,
    limit: int | None = None,
    hand_over: bool | Literal["only"] | None = None,
    mode: ScanMode = "snapshot",
    index_path: str | os.PathLike[str] | None = None,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows of a table that match, as a DataFrame. The driver prunes files, each executor prunes row groups.

    Spark's own Parquet reader reads large results, as in `read_parquet`; `explain` reports this. Each call reads the
    latest version. The DataFrame stays at that version (`refresh` loads it again).

    Args:
        path: the table's directory; executors must see it under the same name.
        where: a PySpark Column, classic or of Spark Connect: the rows are those of `spark.read.parquet(...)` with
            `.where(column)`. Parts that are understood prune; if one is not (functions, arithmetic, a UDF), Spark tests
            the remaining rows by the whole Column. Or SQL text, which means what `F.expr(text)` means in this session
            (time zone, case sensitivity, ANSI mode, functions). Or a result of `predicate`, tuples, a `col` predicate
            or a pyarrow expression, as for `Table.scan`, all of which must be understood. None for every row.
        columns: what to read (default: all), in this order; an empty list returns rows that can be counted.
        order_by: the order of the rows, as for `Table.scan`: "ts", ("ts", "desc"), or a list of these; nulls last by
            default.
        limit: at most so many rows: the first by `order_by`, otherwise any. Spark sorts them. For up to 100,000, unless
            Spark tests `where`, the sort key of the last one is looked up now, and files and row groups that cannot
            contain one of them are skipped.
        hand_over: whether Spark's own reader reads the remaining files, if it reads the same rows. By default it does
            if they are local, have 128 MB or more in at most 10,000 files, no index has named rows or row groups, and
            `where` is a text, a Column or None. Then the files are compared with the index now; otherwise executors
            compare them when they read. "only": raise if Spark's own reader would not read the same rows.
        mode: "snapshot", in which executors merge slices with logs by the reader of their format; or "read_optimized":
            only the bases of such slices.
        index_path: the folder of the index, if it is not in the table.
        version: the version to read (default: the latest).
        storage_options: options of an object store, which are passed to the executors.

    Raises:
        NotATableError: there is no index, or no such version. PredicateError: `where` cannot be read, names a column
        that does not exist, or (if it is not a Column) cannot be tested on rows. SchemaError: `columns` or `order_by`
        names a column that does not exist, or of a type that Spark does not have. InvalidArgumentError: a bad order,
        limit or mode.
    """
    options = {"order_by": order_by, "limit": limit, "hand_over": hand_over, "mode": mode, "index_path": index_path}
    again = partial(scan, spark, path, where, storage_options=storage_options, **options)  # type: ignore[arg-type]
    register(spark)  # also if Spark's own reader reads the rows: a plain save may follow
    with open_table(path, version=version, index_path=index_path, storage_options=storage_options) as table:
        residual, names_tested, is_tested, condition = None, None, False, None
        if isinstance(where, str | Column):
            node, names_tested = spark_where(spark, where, table.schema)
            is_tested, condition = bool(unknowns(node)), catalyst.as_column(spark, where)
            # Spark tests what it means by a text, too, if it tells which columns that reads.
            if is_tested or (isinstance(where, str) and catalyst.is_classic(spark)):
                residual = condition
            where = without_unknowns(node)
        else:
            where = where_node(where, table.schema)
        has_where = where is not None
        plan = table.scan(where, columns, limit=limit, order_by=order_by, mode=mode)
        plan.planning.check_evaluable()
        names, keys = list(plan.columns), plan.planning.order_by
        if keys and limit is not None and 0 < limit <= _FIRST_ROWS_MAX and not is_tested:
            where = _bounded(table, where, order_by, limit, mode)
            plan = table.scan(where, columns, mode=mode)
        needed = [top_level(table.schema, key.column) for key in keys]
        tested = [] if condition is None else _tested_columns(names_tested, readable_schema(table.schema).names)
        needed += [] if residual is None else tested
        wire = wire_schema(table.schema, list(dict.fromkeys([*names, *needed])))
        sorts = [_sort(spark, key, table.schema) for key in keys]
        request = Request.of(
            table,
            # a tree, never text: a worker that plans need not load the SQL parser
            where=None if where is None else encode_predicate(parse(where)),
            residual=str(residual)[:_RESIDUAL_CHARACTERS] if is_tested else None,
            mode=mode,
            parallelism=default_parallelism(spark),
        )
        result, read = None, wire.names
        is_python_test = has_where and condition is None  # what Spark's own reader gains would be lost
        if hand_over is not False and (hand_over or (is_bulk_read(plan.planning) and not is_python_test)):
            from .parquet_reader import read_files

            otherwise = () if hand_over == "only" else (NotReadableError, SchemaError, PredicateError)
            with contextlib.suppress(*otherwise):  # it would read otherwise
                whole = table.scan(where, list(dict.fromkeys([*wire.names, *tested])), mode=mode)
                result = read_files(spark, table, whole, request, whole.bound if is_python_test else condition, path)
                read = whole.columns
    if result is None:
        frame = load(spark, request, spark_schema(wire))
        result = frame if residual is None else frame.where(residual)
        if residual is not None and catalyst.names_files(result, residual):
            raise PredicateError(
                "input_file_name() and the like are not known of rows that Skipstone reads: use read_parquet(), or "
                'scan(hand_over="only")'
            )
    if sorts:
        result = result.orderBy(*sorts)
    if limit is not None:
        result = result.limit(limit)
    if list(read) != names:
        result = result.select(*map(quoted, names))
    _scans[result] = partial(again, names)
    return result


def read_parquet(
    spark: SparkSession,
    path: str | os.PathLike[str],
    where: object = None,
    columns: Sequence[str] | None = None,
    *,
    index_path: str | os.PathLike[str] | None = None,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows of a table that match: a `scan` with `hand_over="only"`. Spark's own Parquet reader reads the
    files that can contain one.

    All indexes prune files; within files Spark prunes by Parquet's own statistics. Use this for large results, and
    `scan` for small ones.

    Args:
        where: as in `scan`. Spark filters by a Column or a text. Other predicates are tested in Python, which takes
            longer: pass a text.
        path, columns, index_path, version: as in `scan`.
        storage_options: options of an object store, for the index and to check the files. Spark opens the files with
            its own configuration: pass the path under a scheme that it supports, such as s3a://.

    Raises:
        As `scan`. NotReadableError: files that Spark would not read as the table has them (`scan` reads these), or that
        changed since they were indexed.
    """
    places: dict[str, Any] = {"index_path": index_path, "storage_options": storage_options}
    return scan(spark, path, where, columns, hand_over="only", version=version, **places)


def _tested_columns(names: set[str] | None, readable: Sequence[str]) -> Sequence[str]:
    """The columns of a table that Spark's test reads, all if that is not known. A source of Python learns which columns
    to read when it is loaded, not when the query is planned."""
    lowered = None if names is None else {name.lower() for name in names}
    return [name for name in readable if lowered is None or name.lower() in lowered]


def _bounded(table: Table, where: object, order_by: OrderBy | None, limit: int, mode: ScanMode) -> object:
    """A predicate of the rows of `where` that may be among the first ones of an order: by the first sort key of the
    last of them, which is looked up now."""
    first = partial(table.scan, where, mode=mode, order_by=order_by, limit=limit)
    key = first().planning.order_by[0]
    rows = first(columns=[top_level(table.schema, key.column)]).to_table()
    last = leaf_array(rows, key.column)[-1] if rows.num_rows == limit else pa.scalar(None)
    is_ns = pa.types.is_timestamp(last.type) and last.type.unit == "ns"  # Spark sorts by microseconds
    if not last.is_valid or is_ns or (pa.types.is_floating(last.type) and math.isnan(last.as_py())):
        return where
    column = col(key.column)
    among = column >= last if key.is_max else column <= last
    if key.nulls_first:
        among = column.is_null() | among
    return among if where is None else And((parse(where), among))


def _sort(spark: SparkSession, key: SortKey, schema: pa.Schema) -> Column:
    """A sort key as Spark's Column."""
    top = top_level(schema, key.column)
    rest = key.column[len(top) + 1 :].split(".") if len(key.column) > len(top) else []
    column: Any = catalyst.as_column(spark, quoted(top, *rest))
    if key.is_max:
        return column.desc_nulls_first() if key.nulls_first else column.desc_nulls_last()
    return column.asc_nulls_first() if key.nulls_first else column.asc_nulls_last()


def refresh(frame: DataFrame) -> DataFrame:
    """Return what a DataFrame reads, at the latest version: a new `scan` of the same table, with the same `where`,
    columns and options. The DataFrame itself stays at its version.

    Raises InvalidArgumentError for a DataFrame that is not a result of `scan`: apply filters and joins to the result of
    `refresh`. Else as `scan`.
    """
    check_frame(frame, "refresh")
    again = _scans.get(frame)
    if again is None:
        raise InvalidArgumentError(
            "refresh() accepts what scan() returned; refresh that, and apply filters and joins to the result; load "
            'spark.read.format("skipstone") again'
        )
    return again()


def view(
    spark: SparkSession,
    name: str,
    path: str | os.PathLike[str],
    where: object = None,
    columns: Sequence[str] | None = None,
    *,
    index_path: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Create or replace a temporary view of a session, which reads the latest version of a table at each query.

        sks.view(spark, "flights", "lake/flights")
        spark.sql("SELECT count(*) FROM flights WHERE origin = 'JFK'")

    Each query calls this process, which plans a `scan`. Without `where`, Spark's own Parquet reader reads the live
    files, if it reads the same rows, and the plan is made once per version. A DataFrame over the view (`spark.sql`,
    `spark.table`) stays at the version at which it was created. A query that names the view twice plans it twice, and
    may read two versions. The view has the columns of now: call `view` again after some were added. Nothing can be
    inserted into it; `save` to the table's path.

    Args:
        name: of the view.
        where, columns, index_path, storage_options: as in `scan`. The session's settings at each query determine what a
            text or a Column means.

    Raises:
        As `scan`. InvalidArgumentError over Spark Connect, where a view would stay at one version.
    """
    if not catalyst.is_classic(spark):
        raise InvalidArgumentError(
            "over Spark Connect a view stays at the version at which it was created: create a DataFrame by "
            "scan() for each query, or the view again, by scan(...).createOrReplaceTempView(name)"
        )
    places: dict[str, Any] = {"index_path": index_path, "storage_options": storage_options}
    with open_table(path, **places) as table:
        location = table.location
        reads_whole = True if where is None and can_check_files(table.scan().planning) else None
    read = partial(scan, spark, location, where, hand_over=reads_whole, **places)
    read = partial(read, columns=read(columns=columns).columns)
    catalyst.define_view(spark, name, _kept(spark, read, location, places) if reads_whole else read)


def _kept(
    spark: SparkSession, read: Callable[[], DataFrame], location: str, places: dict[str, Any]
) -> Callable[[], DataFrame]:
    """`read`, whose frame of all rows is kept as long as the version and the files are those that it was made of: to
    make it takes Spark about a tenth of a second, because it lists the files."""
    kept: tuple[Any, DataFrame | None] = None, None

    def latest() -> DataFrame:
        nonlocal kept
        with open_table(location, **places) as table:
            state = table.handle.instant.checksum, table.handle.log_position, spark.conf.get(INT96_CONVERSION)
            planning = table.scan(columns=[]).planning  # warns of a directory that changed since the last sync
            with contextlib.suppress(NotReadableError):
                check_files(planning, planning.tasks_of_whole_files())
                if kept[1] is not None and kept[0] == state:
                    return kept[1]
        frame = read()  # of this version, or of a later one: then the next query makes it again
        kept = state, frame
        return frame

    return latest
