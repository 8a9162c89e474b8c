"""`read_files`: Spark's own Parquet reader, vectorised and in the JVM, over the files that pruning leaves.

Spark is given everything that it would otherwise guess: the schema (or `p=001` is the integer 1), where partition
columns begin (`basePath`), that names are no patterns, that times are as stored, and to list so many files itself
rather than by a job. Files that Spark would read otherwise than the table has them are refused: `scan` reads these.

Spark's reader compares filters with a file's statistics in the type that the *file* has. Where that is narrower than
the column's, the literal is cut to it: 3 us to 0 ms, so `t < 3 us` leaves out a file of TIMESTAMP(ms) that is all 0;
123456789.01 as a DECIMAL(15, 2) wraps round in a file of DECIMAL(5, 2), or ends the query. It also leaves out rows of
floats that match, by bounds that leave out NaN and by dictionaries that distinguish -0.0 from 0.0: to Spark NaN is
greater than any number. Such columns are hidden from the reader; Spark compares the rows that are read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from ..base.arrays import null_as_false
from ..engine import hive
from ..engine.predicates import Node, top_columns
from ..engine.predicates.coerce import is_list, plain_type
from ..engine.predicates.rows import matches
from ..engine.scan.fragments import name_lookup_problem
from ..engine.scan.plan import Plan
from ..engine.storage import is_outside
from ..engine.storage.places import is_uri
from ..errors import NotReadableError, SchemaError
from .columns import quoted
from .jobs import Batches, batches_only
from .old_calendar import stored_times
from .options import Request
from .sessions import INT96_CONVERSION, REQUEST_OPTION
from .shares import check_files
from .wire_types import holds_nanoseconds, spark_schema, to_table_types, wire_schema, wire_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..engine.state import FileSchema
    from ..engine.table import Table

ColumnPath = tuple[str, ...]

_listing = threading.Lock()
_LISTING_THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_TIMES_AS_STORED = {"datetimeRebaseMode": "CORRECTED", "int96RebaseMode": "CORRECTED"}  # whatever the session's setting
_PLAIN_INTEGER = re.compile(r"-?[1-9][0-9]*|0")
_PLAIN_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ESCAPE_BEYOND_ASCII = re.compile(r"%[89A-Fa-f][0-9A-Fa-f]")


def read_files(
    spark: SparkSession,
    table: Table,
    plan: Plan,
    request: Request,
    condition: Column | Node | None,
    path: str | os.PathLike,
) -> DataFrame:
    """The rows of the files that a plan leaves, in the plan's columns, by Spark's own reader.

    Args:
        request: the scan, for code that finds it in a DataFrame's plan.
        condition: what the rows are tested by: a Column, or a bound predicate; None: they are not tested.
        path: the table's directory, as the caller has it.

    Raises NotReadableError and SchemaError for files that Spark would not read as the table has them, or that changed.
    """
    used = top_columns(plan.bound)
    files = _Files(table, plan, _root(path, table.location), used)
    # Whatever filter is put on the frame is to choose among all of its rows, as it does of a scan.
    frame = hide_from_pushdown(files.frame(spark, request), table.schema, files.schemas())
    if isinstance(condition, Column):
        frame = frame.where(condition)
    elif condition is not None:
        schema = pa.schema([table.schema.field(name) for name in frame.columns])
        frame = frame.mapInArrow(batches_only(partial(_matching, condition, schema)), frame.schema)
    return frame.select([quoted(name) for name in plan.columns])


def _matching(bound: Node, schema: pa.Schema, batches: Batches) -> Batches:
    """In an executor, the rows for which a bound predicate is TRUE."""
    for batch in batches:
        rows = to_table_types(pa.Table.from_batches([batch]), schema.names, schema)
        yield batch.filter(null_as_false(matches(bound, rows)))


def _root(path: str | os.PathLike, location: str) -> str:
    """The table's directory, as Spark opens it: an object store under the scheme that the caller has for it."""
    text = os.fspath(path)
    if not is_uri(location):
        return f"file://{location}"
    return text.rstrip("/") if is_uri(text) and not text.endswith(".json") else location


class _Files:
    """The files that Spark is to read, and `used` columns in addition to those of the plan.

    Raises NotReadableError if Spark would read a column of a file otherwise than we, or not find its partition.
    SchemaError: a column that Spark has no type for, or takes for another.
    """

    def __init__(self, table: Table, plan: Plan, root: str, used: Sequence[str]):
        plan.planning.check_plain()
        self._plan, self._root, self._instant = plan.planning, root, plan.planning.instant
        self._tasks = [task for task in plan.planning.tasks_of_whole_files() if task.has_rows]
        names = list(dict.fromkeys([*plan.columns, *used]))
        self._wire = wire_schema(self._instant.schema, names)
        self._check_columns(names)
        self._check_paths()
        times = stored_times(table.handle, names, self._tasks)
        self._int96 = frozenset[str]().union(*(stored.int96 for stored in times.values()))
        nested = {name for name in self._int96 if pa.types.is_nested(self._wire.field(name).type)}
        wrong = [path for path, stored in times.items() if stored.is_shifted or stored.int96 & nested]
        if wrong:
            raise NotReadableError(
                f"{wrong[0]}: stores times of the old calendar (Spark's mode LEGACY), or INT96 within other values; "
                "Spark's own reader would show others: use scan(), or leave the column out by columns=",
                paths=wrong,
            )

    def schemas(self) -> list[FileSchema]:
        """The physical schemas of the files."""
        return [self._instant.file_schemas[number] for number in {task.schema_id for task in self._tasks}]

    def _check_columns(self, names: list[str]) -> None:
        stored = [name for name in names if name not in self._instant.partitioning]
        examples = {task.schema_id: task for task in self._tasks}
        for number, task in examples.items():
            file_schema = self._instant.file_schemas[number]

            def can_read(kind: pa.DataType, name: str) -> bool:
                return not holds_nanoseconds(kind) and is_read_as(plain_type(kind), self._wire.field(name).type)

            wrong = name_lookup_problem(file_schema, self._instant, stored, can_read)
            if wrong is not None:
                raise NotReadableError(
                    f"{task.path}, for one: {wrong}; Spark's own reader finds columns by name: use scan(), leave the "
                    "column out by columns=, or rewrite such files",
                    paths=[t.path for t in self._tasks if t.schema_id == number],
                )
        folded: dict[str, str] = {}
        for name in names:
            other = folded.setdefault(name.lower(), name)
            if other != name:
                raise SchemaError(f"columns {other!r} and {name!r} are one to Spark, which ignores case; use columns=")

    def _check_paths(self) -> None:
        for task in self._tasks:
            name = task.path.rpartition("/")[2]
            if name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_"):
                raise NotReadableError(
                    f"{task.path}: Spark's own reader skips files of such names; use scan()", paths=[task.path]
                )
            if self._instant.partitioning and not _has_partition_in_path(task.path, task.partition):
                raise NotReadableError(
                    f"{task.path}: the path does not give Spark the partition; use scan()", paths=[task.path]
                )

    def frame(self, spark: SparkSession, request: Request) -> DataFrame:
        """A frame of all rows of the files, in at least the columns that are needed."""
        if self._int96 and spark.conf.get(INT96_CONVERSION) != "false":
            raise NotReadableError(f"{INT96_CONVERSION} is set, so Spark would shift INT96: unset it, or use scan()")
        check_files(self._plan, self._tasks)
        partitioning = self._instant.partitioning
        names = [*self._wire.names, *(name for name in partitioning if name not in self._wire.names)]
        wire = wire_schema(self._instant.schema, names)
        for name in self._int96:  # to Spark an instant
            wire = wire.set(wire.get_field_index(name), pa.field(name, pa.timestamp("us", "UTC")))
        options = {
            REQUEST_OPTION: json.dumps(request.to_options()),
            "__globPaths__": "false",
            **({"basePath": self._root} if partitioning else {"recursiveFileLookup": "true"}),
            **_TIMES_AS_STORED,
        }
        paths = [self._place(task.path) for task in self._tasks]
        with _listed_by_the_driver(spark, len(paths)):
            frame = spark.read.format("parquet").schema(spark_schema(wire)).options(**options).load(paths)
        for name in self._int96:
            frame = frame.withColumn(name, _in_utc(F.col(quoted(name))))
        return frame

    def _place(self, path: str) -> str:
        if not is_outside(path):
            return f"{self._root}/{path}"
        return path if is_uri(path) else f"file://{path}"


def _in_utc(instant: Column) -> Column:
    """An instant as a time without a zone, as UTC's clocks show it. A cast would go by the clocks of the session's
    zone, which show some times twice."""
    seconds, zero = F.unix_micros(instant).cast("decimal(20, 0)") / 1_000_000, F.lit(0)
    return F.expr("TIMESTAMP_NTZ '1970-01-01'") + F.make_dt_interval(zero, zero, zero, seconds)


@contextlib.contextmanager
def _listed_by_the_driver(spark: SparkSession, paths: int) -> Iterator[None]:
    """Within, Spark lists so many paths on the driver: beyond some number (32) it would run a job for it. (A session of
    Spark Connect lists them later.) One thread at a time, or they would restore each other's setting."""
    with _listing:
        before = spark.conf.get(_LISTING_THRESHOLD, None)
        if int(before or 32) > paths:
            yield
            return
        spark.conf.set(_LISTING_THRESHOLD, str(paths + 1))
        try:
            yield
        finally:
            if before is None:
                spark.conf.unset(_LISTING_THRESHOLD)
            else:
                spark.conf.set(_LISTING_THRESHOLD, before)


def _has_partition_in_path(path: str, partition: Mapping[str, pa.Scalar]) -> bool:
    """Whether Spark reads from a path the same values as we do: `key=value` folders of these keys and no others, with
    values that are written in one way only."""
    if is_outside(path):
        return False
    folders = path.split("/")[:-1]
    if len(folders) != len(partition):
        return False
    for folder, (name, value) in zip(folders, partition.items(), strict=True):
        key, _, text = folder.partition("=")
        if hive.unescape(key) != name or not _is_plain(text, value) or _ESCAPE_BEYOND_ASCII.search(folder):
            return False
    return True


def _is_plain(text: str, value: pa.Scalar) -> bool:
    if not value.is_valid or text == hive.NULL_VALUE:
        return text == hive.NULL_VALUE and not value.is_valid
    if pa.types.is_string(value.type):
        return hive.unescape(text) == value.as_py() != ""
    if pa.types.is_signed_integer(value.type):
        return _PLAIN_INTEGER.fullmatch(text) is not None and int(text) == value.as_py()
    if pa.types.is_date32(value.type):
        return _PLAIN_DATE.fullmatch(text) is not None and text == value.as_py().isoformat()
    return False


# -- what Spark's reader would skip wrongly ---------------------------------------------------------------------------


def hide_from_pushdown(frame: DataFrame, schema: pa.Schema, stored: Iterable[FileSchema]) -> DataFrame:
    """The same rows, in columns whose comparisons Spark does not push down if its reader would err. `stored`: the
    physical schemas of the files."""
    for path in sorted(_unsafe_paths(schema, stored)):
        top, rest = path[0], path[1:]
        if top not in frame.columns:
            continue
        term = F.col(quoted(*path))
        value = F.greatest(term, term)  # the value itself, and no column to Spark
        frame = frame.withColumn(top, F.col(quoted(top)).withField(quoted(*rest), value) if rest else value)
    return frame


def _unsafe_paths(schema: pa.Schema, stored: Iterable[FileSchema]) -> set[ColumnPath]:
    """The columns, and fields of structs, of floats, and those of a type that literals are cut to if some file has
    another (or may have: `is_declared` marks a schema that no footer confirmed)."""
    paths: set[ColumnPath] = set()
    for file in stored:
        for name in file.schema.names:
            if schema.get_field_index(name) >= 0:
                written, declared = (plain_type(each.field(name).type) for each in (file.schema, schema))
                paths.update(_unsafe_terms(written, declared, (name,), file.is_declared))
    return paths


def _unsafe_terms(
    stored: pa.DataType, declared: pa.DataType, path: ColumnPath, is_declared: bool
) -> Iterator[ColumnPath]:
    if pa.types.is_struct(stored) and pa.types.is_struct(declared):
        for field in declared:
            if stored.get_field_index(field.name) >= 0:
                inner = plain_type(stored.field(field.name).type)
                yield from _unsafe_terms(inner, plain_type(field.type), (*path, field.name), is_declared)
    else:
        is_cut = pa.types.is_decimal(declared) or pa.types.is_timestamp(declared)
        if pa.types.is_floating(declared) or (is_cut and (is_declared or stored != declared)):
            yield path


def is_read_as(kind: pa.DataType, wire: pa.DataType) -> bool:
    """Whether Spark's reader reads a stored type as `wire`, with equal values: found by trying each pair. Where it does
    not, it would fail in the middle of a query."""
    if pa.types.is_struct(kind) and pa.types.is_struct(wire):
        shared = [field for field in wire if kind.get_field_index(field.name) >= 0]
        return bool(shared) and all(is_read_as(plain_type(kind.field(f.name).type), f.type) for f in shared)
    if pa.types.is_map(kind) and pa.types.is_map(wire):
        pairs = (kind.key_type, wire.key_type), (kind.item_type, wire.item_type)
        return all(is_read_as(plain_type(stored), read) for stored, read in pairs)
    if is_list(kind) and pa.types.is_list(wire):
        return is_read_as(plain_type(kind.value_type), wire.value_type)
    if pa.types.is_null(kind):
        return True
    if pa.types.is_float16(kind):
        return False
    try:
        given = wire_type(kind, "value")
    except SchemaError:
        return False
    if given == wire:
        return True
    if pa.types.is_integer(given) and pa.types.is_integer(wire):
        return wire.bit_width >= given.bit_width
    if pa.types.is_signed_integer(kind) and pa.types.is_decimal(wire):
        return wire.precision - wire.scale >= (20 if kind.bit_width == 64 else 10)
    if pa.types.is_signed_integer(kind) and pa.types.is_float64(wire):
        return kind.bit_width <= 32
    if pa.types.is_decimal(given) and pa.types.is_decimal(wire):
        return wire.scale >= given.scale and wire.precision - wire.scale >= given.precision - given.scale
    if pa.types.is_date32(given):
        return pa.types.is_timestamp(wire) and wire.tz is None
    return pa.types.is_float32(given) and pa.types.is_float64(wire)
