"""`read_parquet`: Spark's own Parquet reader, vectorised and in the JVM, over the files that coarse pruning leaves.

Spark is given everything that it would otherwise guess: the schema (or `p=001` is the integer 1), where partition
columns begin (`basePath`), that names are no patterns, and to list so many files itself rather than by a job. Where
files hold a column under another name, or paths do not say their partition, the values are put beside the rows, or the
files are refused.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from ..engine import hive
from ..engine.open import open_table
from ..engine.parquet.leaves import top_level
from ..engine.predicates import Constant, Node, columns_of, parse, unknowns
from ..engine.predicates.coerce import plain_type
from ..engine.scan.file_reader import check_identity
from ..engine.scan.file_tasks import FileTask
from ..engine.scan.fragments import name_lookup_problem
from ..engine.scan.plan import Plan
from ..engine.storage import is_outside
from ..engine.storage.places import is_uri
from ..engine.storage.threads import prefetched
from ..errors import NotReadableError, PredicateError, SchemaError
from .columns import quoted, where_node, without_unknowns
from .old_calendar import in_utc, int96_columns, loaded_type, shifted_files
from .options import Request, encode_predicate
from .pushdown_guard import hide_from_pushdown, is_read_as, without_old_times
from .relations import PRUNED_OPTION, REQUEST_OPTION, TABLE_OPTION, VERSION_OPTION
from .sessions import spark_where
from .to_columns import has_floats, literal, to_column
from .wire_types import holds_nanoseconds, spark_schema, wire_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..engine.state import FileSchema
    from ..engine.table import Table

_listing = threading.Lock()
_LISTING_THRESHOLD = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_PARTITIONS_APART_MAX = 100  # each is a scan of its own in Spark's plan
_STATS_AT_ONCE = 8
_TIMES_AS_STORED = {"datetimeRebaseMode": "CORRECTED", "int96RebaseMode": "CORRECTED"}  # whatever the session says
_PLAIN_INTEGER = re.compile(r"-?[1-9][0-9]*|0")
_PLAIN_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ESCAPE_BEYOND_ASCII = re.compile(r"%[89A-Fa-f][0-9A-Fa-f]")


def read_parquet(
    spark: SparkSession,
    path: str | os.PathLike,
    where: object = None,
    columns: Sequence[str] | None = None,
    *,
    index_path: str | os.PathLike | None = None,
    version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The rows of a table that match, read by Spark's own Parquet reader from the files that may hold one.

    The rows and the types are those of `scan`. Files are pruned here, by all indexes; within files Spark prunes by
    Parquet's own statistics. So this is for large results, and `scan` for small ones.

    Args:
        where: as in `scan`. A PySpark Column or a text is Spark's own filter as well: parts that are not understood
            prune nothing, and are tested by Spark.
        path, columns, index_path, version: as in `scan`.
        storage_options: what opens an object store, for the index and to look at the files. Spark opens the files by
            its own configuration: give the path under a scheme that it knows, as s3a://.

    Raises:
        As `scan`. PredicateError: a part of `where` has no exact equivalent in Spark. NotReadableError: files that
        Spark would not read as the table has them (`scan` reads some), or that changed since they were indexed.
    """
    with open_table(path, version=version, index_path=index_path, storage_options=storage_options) as table:
        node, tested, with_all = where, [], False
        if isinstance(where, str | Column):
            meaning = spark_where(spark, where, table.schema)
            node, where, with_all = meaning.node, meaning.column, meaning.columns is None
            tested = [name for name in table.schema.names if name in (meaning.columns or ())]
        else:
            node = where_node(where, table.schema)
        plan = table.scan(node, columns)
        wire_schema(table.schema, plan.columns)  # raises for a type that Spark does not have
        safe = without_old_times(plan.bound)
        pruned = plan if safe is plan.bound else table.scan(safe, plan.columns)
        used = [*tested, *(top_level(table.schema, name) for name in columns_of(plan.bound))]
        files = _Files(table, pruned, _root(path, table.location), with_all=with_all, used=used)
        condition = _filter(where, plan)
        frame = files.frame(spark, **_explained(table, node if pruned is plan else None))
        if condition is not None:
            may_lose_floats = condition is where and (bool(unknowns(plan.bound)) or has_floats(plan.bound))
            frame = hide_from_pushdown(frame, table.schema, files.schemas(), with_floats=may_lose_floats)
    if condition is not None:
        frame = frame.where(condition)
    return frame.select([quoted(name) for name in plan.columns])


def read_files(spark: SparkSession, path: str, table: Table, plan: Plan, where: Node) -> DataFrame:
    """All rows, in the plan's columns, of the files that a plan leaves, by Spark's own reader: no row is tested.
    `where`: what chose the files, for `explain`.

    Raises NotReadableError for files that Spark would not read as the table has them, or that changed.
    """
    files = _Files(table, plan, _root(path, table.location), with_all=False, used=[])
    frame = files.frame(spark, **_explained(table, where))
    return frame.select([quoted(name) for name in plan.columns])


def _explained(table: Table, where: object) -> dict[str, str]:
    """The option by which `explain` finds what chose the files of a read."""
    predicate = None if where is None else encode_predicate(without_unknowns(parse(where)))
    request = Request(
        path=table.location,
        predicate=predicate,
        index_path=table.handle.index_storage.uri,
        version=table.version,
        log_position=table.handle.log_position,
        storage_options=table.handle.storage_options,
    )
    return {PRUNED_OPTION: json.dumps(request.to_options())}


def read_by_spark(
    spark: SparkSession, table: Table, plan: Plan, condition: Column | None, request: Request
) -> DataFrame | None:
    """The rows of a scan, in the plan's columns, by Spark's own reader; None where that would read otherwise.

    Args:
        condition: what the rows are tested by; None: the plan's predicate.
        request: the scan, for whoever finds it in a DataFrame's plan.
    """
    used = [top_level(table.schema, name) for name in columns_of(plan.bound)]
    try:
        files = _Files(table, plan, _root(table.location, table.location), with_all=False, used=used)
        if files.are_shifted():
            return None
        if condition is None and plan.bound != Constant(True):
            condition = to_column(plan.bound)
        if not files.is_one_load:
            return None
        frame = files.frame(spark, **{REQUEST_OPTION: json.dumps(request.to_options())}, **_TIMES_AS_STORED)
    except (NotReadableError, SchemaError, PredicateError):
        return None
    # Whatever filter is put on the frame is to choose among all of its rows, as it does of a scan.
    frame = hide_from_pushdown(frame, table.schema, files.schemas(), with_floats=True)
    return (frame if condition is None else frame.where(condition)).select([quoted(name) for name in plan.columns])


def _root(path: str | os.PathLike, location: str) -> str:
    """The table's directory, as Spark opens it: an object store under the scheme that the caller has for it."""
    text = os.fspath(path)
    if not is_uri(location):
        return f"file://{location}"
    return text.rstrip("/") if is_uri(text) and not text.endswith(".json") else location


def _filter(where: object, plan: Plan) -> Column | None:
    if where is None:
        return None
    if not isinstance(where, Column):
        plan.planning.check_evaluable()
        return to_column(plan.bound)
    # Spark's reader loses some rows of floats; where we understand the Column, `to_column` avoids that.
    if not unknowns(plan.bound) and has_floats(plan.bound):
        with contextlib.suppress(PredicateError):
            return to_column(plan.bound)
    return where


class _Files:
    """The files that Spark is to read.

    with_all    load all columns: a Column may use any
    used        columns that a filter uses besides
    """

    def __init__(self, table: Table, plan: Plan, root: str, with_all: bool, used: Sequence[str]):
        plan.planning.check_plain()
        self._table, self._plan, self._root, self._instant = table, plan.planning, root, plan.planning.instant
        schema = self._instant.schema
        self._tasks = [task for task in plan.planning.tasks_of_whole_files() if task.has_rows]
        needed = dict.fromkeys([*plan.columns, *used])
        names = [*needed, *(n for n in schema.names if with_all and n not in needed and self._is_readable(n))]
        self._wire = wire_schema(schema, names)
        self._check(names)
        self._int96 = int96_columns(table, names, self._tasks)

    def schemas(self) -> list[FileSchema]:
        """The physical schemas of the files."""
        return [self._instant.file_schemas[number] for number in {task.schema_id for task in self._tasks}]

    def are_shifted(self) -> bool:
        """Whether Spark's reader would show a date or an instant of the files as another than is stored."""
        return bool(shifted_files(self._table, self._wire.names, self._tasks))

    # -- whether Spark would read them right --------------------------------------------------------------------------

    def _is_readable(self, name: str) -> bool:
        with contextlib.suppress(SchemaError, NotReadableError):
            self._check([name])
            return True
        return False

    def _check(self, names: list[str]) -> None:
        """Raises NotReadableError where Spark would read a column of a file otherwise than we, SchemaError for a column
        that Spark has no type for, or takes for another."""
        wire = wire_schema(self._instant.schema, names)
        stored = [name for name in names if name not in self._instant.partitioning]
        examples = {task.schema_id: task for task in self._tasks}
        for number, task in examples.items():
            file_schema = self._instant.file_schemas[number]

            def can_read(kind: pa.DataType, name: str) -> bool:
                return not holds_nanoseconds(kind) and is_read_as(plain_type(kind), wire.field(name).type)

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

    # -- how they are read --------------------------------------------------------------------------------------------

    @property
    def is_one_load(self) -> bool:
        """Whether Spark reads all of them as one relation."""
        return len(self._loads()) < 2

    def frame(self, spark: SparkSession, **options: str) -> DataFrame:
        """A frame of all rows of the files, in at least the columns that are needed. `options`: more of the load's."""
        if not self._tasks:
            return self._load(spark, [], self._wire, **options)
        for task in self._tasks:
            _check_name(task.path)
        list(prefetched(lambda t: check_identity(t, self._plan.storage), self._tasks, _STATS_AT_ONCE, "skipstone-stat"))
        frames = []
        for (values, _), tasks in self._loads().items():
            frames.append((self._by_path if values is None else self._apart)(spark, tasks, **options))
        return functools.reduce(lambda one, other: one.unionByName(other), frames)

    def _loads(self) -> dict[tuple, list[FileTask]]:
        """The files of each relation: those whose paths give Spark their partition, and others, partition by partition;
        and apart from each other those that store other columns as INT96."""
        partitioning = self._instant.partitioning
        loads: dict[tuple, list[FileTask]] = {}
        for task in self._tasks:
            values = None
            if not (partitioning and _has_partition_in_path(task.path, task.partition)):
                values = tuple(task.partition[name] for name in partitioning)
            loads.setdefault((values, self._int96.get(task.path)), []).append(task)
        apart = {values: tasks for (values, _), tasks in loads.items() if values is not None}
        if len(apart) > _PARTITIONS_APART_MAX:
            raise NotReadableError(
                f"the paths of files in {len(apart)} partitions, {next(iter(apart.values()))[0].path} among them, do "
                f"not give Spark the partition; more than {_PARTITIONS_APART_MAX} cannot be read so: use scan()",
                paths=[task.path for (values, _), tasks in loads.items() for task in tasks if values is not None],
            )
        return loads

    def _by_path(self, spark: SparkSession, tasks: list[FileTask], **options: str) -> DataFrame:
        names = [*self._wire.names, *(n for n in self._instant.partitioning if n not in self._wire.names)]
        return self._load(spark, tasks, wire_schema(self._instant.schema, names), basePath=self._root, **options)

    def _apart(self, spark: SparkSession, tasks: list[FileTask], **options: str) -> DataFrame:
        """Files of one partition, whose values are added to their rows."""
        values = {name: value for name, value in tasks[0].partition.items() if name in self._wire.names}
        stored = pa.schema([field for field in self._wire if field.name not in values])
        frame = self._load(spark, tasks, stored, recursiveFileLookup="true", **options)
        for name, value in values.items():
            frame = frame.withColumn(name, literal(value, self._wire.field(name).type))
        return frame

    def _load(self, spark: SparkSession, tasks: Sequence[FileTask], wire: pa.Schema, **options: str) -> DataFrame:
        """All rows of files that store the same columns as INT96."""
        paths = [self._place(task.path) for task in tasks]
        int96 = self._int96.get(tasks[0].path, frozenset()) if tasks else frozenset()
        loaded = pa.schema(
            [field.with_type(loaded_type(field.type)) if field.name in int96 else field for field in wire]
        )
        options |= {TABLE_OPTION: self._instant.table_id, VERSION_OPTION: str(self._instant.version)}
        reader = spark.read.format("parquet").schema(spark_schema(loaded)).options(**options)
        with _listed_by_the_driver(spark, len(paths)):
            frame = reader.option("__globPaths__", "false").load(paths)
        for name in int96:
            frame = frame.withColumn(name, in_utc(F.col(quoted(name)), wire.field(name).type))
        return frame

    def _place(self, path: str) -> str:
        if not is_outside(path):
            return f"{self._root}/{path}"
        return path if is_uri(path) else f"file://{path}"


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


def _check_name(path: str) -> None:
    """Raises NotReadableError for a name that Spark takes for a hidden file's, and skips even where it is listed."""
    name = path.rpartition("/")[2]
    if name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_"):
        raise NotReadableError(f"{path}: Spark's own reader skips files of such names; use scan()", paths=[path])


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
