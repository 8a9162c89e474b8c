"""`lookup`: the rows whose values in some columns are those of one of very many keys, as a DataFrame.

    few keys of one column     a scan with IN: filters and statistics can prune by them
    files of the index         keys, sorted -> (file, row), by the secondary index -> dealt out by file -> those rows
    other files                read, as far as the range of the keys leaves them, and joined by Spark

The keys never come to the driver: they are joined against the index where Spark sorts them to, each task with a range
of its own. What runs in executors: `lookup_tasks`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..base.arrays import to_numpy
from ..engine.indexes.row_index import best_index, covered_by, leading_names
from ..engine.open import open_table
from ..engine.parquet.leaves import leaf_types, top_level
from ..engine.predicates import And, Constant, Node, col, columns_read, parse
from ..engine.progress import Progress, progress_function
from ..engine.rows_by_key.verbs import key_names
from ..engine.scan.keys import key_set
from ..engine.scan.lookup import FEW_KEYS, span_of
from ..engine.scan.planning import PlannedScan
from ..engine.scan.request import ScanRequest
from ..errors import SchemaError
from .columns import quoted
from .jobs import batches_only, frame_of_parts, run_action
from .lookup_tasks import ShippedLookup, encode_keys, find_rows, read_rows, read_uncovered
from .options import Request
from .relations import check_frame
from .scanning import scan
from .sessions import read_where
from .shares import pack
from .spark_versions import arrow_schema_of, collected, slots
from .to_columns import to_column
from .wire_types import spark_schema, wire_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from ..engine.state import IndexState
    from ..engine.table import Table

_PARTS_A_CORE = 3


def lookup(
    spark: SparkSession,
    path: str | os.PathLike,
    keys: DataFrame,
    on: str | Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    where: object = None,
    index_path: str | os.PathLike | None = None,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> DataFrame:
    """Return the rows of a table whose values in `on` are one of many keys: a left semi-join, by a secondary index of
    these columns if there is one. Each row is returned once, however often its key is given; a null matches nothing.

    The DataFrame stays at the version that is the latest now, and runs when an action does. Only this runs immediately:
    as many keys of one column are read as `scan` can use in IN; and if no index covers some files, the least and the
    greatest key are computed, so that not all of these files are read. Cache keys that are expensive to compute.

    Args:
        path: the table's directory; executors must see it under the same name.
        keys: a DataFrame with columns of the names in `on`. Numbers of another type are compared as numbers,
            timestamps of another unit as instants (without a zone: UTC), and bytes with UUIDs; anything else must be
            of the column's type.
        on: names of columns of the table; fields of structs by dotted path, which is also their name in `keys`.
        columns: what to read (default: all), in this order.
        where: which of these rows, as for `scan`; each part must be understood. With few keys it is part of a scan;
            with many, it prunes the files that no index covers, and is tested on all rows.
        index_path: the folder of the index, if it is not in the table.
        version: the version to read (default: the latest).
        storage_options: options of an object store, which are passed to the executors.
        progress: for what runs immediately, called as f(step, done, total), or True for a bar on stderr.

    Raises:
        NotATableError: there is no index, or no such version. SchemaError: a column that does not exist, keys of types
        that cannot be compared with the columns. NotReadableError: files that only their own format's reader can read.
        At an action, within Spark's error: CorruptionError for a damaged secondary index; SchemaError for a float key
        that is the nearest double of several values of a wide decimal column.
    """
    names, report = _names(keys, on), progress_function(progress)
    with open_table(path, version=version, index_path=index_path, storage_options=storage_options) as table:
        snapshot = table.handle.snapshot
        leaves = leaf_types(table.schema)
        for name in names:
            if name not in leaves:
                raise SchemaError(f"no column {name!r} to look keys up in; there are {', '.join(leaves)}")
        index = best_index(snapshot.instant, names)
        leading = [] if index is None else leading_names(snapshot.instant, index, names)
        names = [*leading, *(name for name in names if name not in leading)]
        key_frame = keys.select(*[keys[quoted(name)].alias(f"k{i}") for i, name in enumerate(names)])
        schema = arrow_schema_of(key_frame.schema)
        sample = pa.table([pa.nulls(1, field.type) for field in schema], names=names)  # a cast of no row is not refused
        key_set(sample, [leaves[name] for name in names])  # raises for types that are not compared
        condition = None if where is None else parse(read_where(spark, where, table.schema))
        if len(names) == 1:
            few = run_action(spark, partial(collected, key_frame.limit(FEW_KEYS + 1)), "keys", report)
            if few.num_rows <= FEW_KEYS:
                among = parse(col(names[0]).is_in(few.column(0).drop_null().unique()))
                # The caller's version, not the one opened: only the latest is read with another format's log.
                return scan(
                    spark,
                    path,
                    among if condition is None else And((among, condition)),
                    columns,
                    index_path=index_path,
                    version=version,
                    storage_options=storage_options,
                )
        joined = partial(_joined, spark, table, key_frame, names, index, len(leading), report)
        if condition is None:
            return joined(columns)
        plan = table.scan(condition, columns)
        plan.planning.check_evaluable()
        used = [top_level(table.schema, name) for name in columns_read(plan.bound)]
        rows = joined(list(dict.fromkeys([*plan.columns, *used])), condition)
        return rows.where(to_column(plan.bound)).select(*map(quoted, plan.columns))


def _joined(
    spark: SparkSession,
    table: Table,
    given: DataFrame,
    names: list[str],
    index: IndexState | None,
    leading: int,
    progress: Progress | None,
    columns: Sequence[str] | None,
    condition: Node | None = None,
) -> DataFrame:
    wanted = table.scan(columns=columns).columns
    wire_schema(table.schema, wanted)  # raises for a type that Spark does not have
    tops = [top_level(table.schema, name) for name in names]
    key = "key of the row"
    while key in table.schema.names:
        key += "_"
    read = tuple(dict.fromkeys([*wanted, *tops]))
    wire = wire_schema(table.schema, read).append(pa.field(key, pa.binary()))
    number = None if index is None else index.id
    lookup = ShippedLookup(Request.of(table), tuple(names), leading, number, read, key, wire)
    for i in range(len(names)):
        given = given.where(given[f"k{i}"].isNotNull())
    uncovered = _uncovered_rows(spark, table, given, lookup, index, condition, progress)
    if uncovered is None and index is not None and leading == len(names):  # its rows are the result
        base = wanted or (tops[0],)
        exact = replace(lookup, key=None, columns=base, wire=wire_schema(table.schema, base))
        rows = _rows_by_index(spark, given, exact)
    else:
        found = [_rows_by_index(spark, given, lookup)] if index is not None else []
        found += [uncovered] if uncovered is not None else []
        if not found:  # no file may hold a key
            return spark.createDataFrame([], spark_schema(wire_schema(table.schema, wanted)))
        encode = batches_only(partial(encode_keys, lookup, table.schema))
        encoded = given.mapInArrow(encode, "key binary").withColumnRenamed("key", key)
        rows = reduce(lambda one, other: one.union(other), found).join(encoded, [key], "left_semi")
    return rows.select(*[rows[quoted(name)] for name in wanted])


def _rows_by_index(spark: SparkSession, given: DataFrame, lookup: ShippedLookup) -> DataFrame:
    """The rows that the index finds."""
    key: list[Column] = [given[f"k{i}"] for i in range(lookup.leading)]
    # A task's keys lie side by side in the index, so that each of its blocks is read by few tasks.
    keys = given.select(*key).distinct()
    keys = keys.repartitionByRange(*keys.columns).sortWithinPartitions(*keys.columns)
    hits = keys.mapInArrow(batches_only(partial(find_rows, lookup)), "file long, row long")
    # With a number of partitions: Spark would choose one by the bytes of the hits, which say nothing about the rows.
    dealt = hits.repartition(_PARTS_A_CORE * slots(spark), hits["file"]).sortWithinPartitions("file", "row")
    return dealt.mapInArrow(batches_only(partial(read_rows, lookup)), spark_schema(lookup.wire))


def _uncovered_rows(
    spark: SparkSession,
    table: Table,
    given: DataFrame,
    lookup: ShippedLookup,
    index: IndexState | None,
    condition: Node | None,
    progress: Progress | None,
) -> DataFrame | None:
    """The rows, within the range of the keys and under the condition, of files that the index does not cover; None
    where it covers all."""
    instant = table.handle.snapshot.instant
    totals = instant.totals
    if index is not None and index.coverage.is_whole(instant.version) and totals["plain"] == totals["files"]:
        return None
    everything = PlannedScan(ScanRequest.of(table.handle, lookup.columns))
    if index is not None and not _uncovered_units(everything, table, index).any():
        return None
    where = _key_range(given, lookup.names, progress)
    where = where if condition is None else And((where, condition))
    plan = PlannedScan(ScanRequest.of(table.handle, lookup.columns), where)
    units = np.ones(plan.pruned.units.count, dtype=bool) if index is None else _uncovered_units(plan, table, index)
    tasks = plan.readable_tasks(units)
    if not tasks:
        return None
    packs = pack(tasks, slots(spark))
    parts = frame_of_parts(spark, packs)
    read = partial(read_uncovered, lookup, plan.context)
    return parts.mapInArrow(batches_only(read), spark_schema(lookup.wire))


def _uncovered_units(plan: PlannedScan, table: Table, index: IndexState) -> np.ndarray:
    """bool [units]: those of which the index does not contain all rows."""
    units = plan.pruned.units
    ids = to_numpy(units.files.column("file_id"))
    covered = units.is_single_file_slice & covered_by(table.handle.snapshot, index, ids)
    uncovered = np.zeros(units.count, dtype=bool)
    uncovered[units.unit_of[~covered]] = True
    return uncovered


def _key_range(keys: DataFrame, names: Sequence[str], progress: Progress | None) -> Node:
    """The ranges in which keys are, whose columns are k0, k1 and so on. Runs a job."""
    ends = [f"{end}(k{i}) as {end}{i}" for i in range(len(names)) for end in ("min", "max")]
    row = run_action(keys.sparkSession, partial(collected, keys.selectExpr(*ends)), "range of keys", progress)
    columns = [
        pa.chunked_array([*row.column(f"min{i}").chunks, *row.column(f"max{i}").chunks]) for i in range(len(names))
    ]
    if columns[0].null_count:
        return Constant(False)
    return span_of(pa.table(columns, names=list(names)))


def _names(keys: DataFrame, on: str | Sequence[str]) -> list[str]:
    check_frame(keys, "lookup")
    names = list(key_names(on))
    missing = [name for name in names if name not in keys.columns]
    if missing:
        raise SchemaError(f"the keys have no column {missing[0]!r}; they have {', '.join(keys.columns)}")
    return names
