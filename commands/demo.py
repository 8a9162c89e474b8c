"""`skipstone demo`: real flights as a lake, indexes over it, and queries run three ways.

1. Full scan: pyarrow reads every file and filters. The filter is written for pyarrow and uses nothing of Skipstone.
2. Skipstone in Python: open, plan, read.
3. Skipstone in Spark: the same plan, read by Spark's executors.

The demo compares the results as sorted rows, in all columns. Each way runs once unmeasured, then three times, and the
median is shown; only Spark's session stays open between runs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ..engine.create import create
from ..engine.open import open_table
from .arguments import AsJson, CommandExit, Option, Status
from .demo_lake import Lake, flights, write_lake
from .output import bytes_text, count_of, note, print_json, stdout, text_table
from .read import print_plan

_TIMES = 3
_SPARK_OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
}
T = TypeVar("T")
SparkRows = Callable[[str, str], pa.Table]  # (path, predicate) -> rows


@dataclass(frozen=True)
class Query:
    """One query: as SQL text for Skipstone, as an expression for the full scan."""

    name: str
    where: str
    expression: pc.Expression


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
) -> None:
    """Make a lake of real flights with indexes, and run queries three ways. Status 3 if results differ."""
    place = tempfile.mkdtemp(prefix="skipstone-demo-") if path is None else None
    try:
        location = os.path.join(place, "flights") if place else os.path.abspath(str(path))
        table = flights(rows)
        lake = write_lake(table, location)
        index_bytes, attach_s, index_s = _index(location)
        if not as_json:
            _print_lake(lake, index_bytes, attach_s, index_s)
        queries = queries_over(table)
        with spark_rows(spark) as (in_spark, why_not):
            outcomes = [_run_query(lake, query, in_spark) for query in queries]
        is_equal = all(outcome.equal for outcome in outcomes)
        if as_json:
            summary = {"lake": asdict(lake), "index_bytes": index_bytes, "spark": why_not or "asked"}
            print_json({**summary, "queries": [asdict(outcome) for outcome in outcomes], "equal": is_equal})
        else:
            _print_outcomes(lake, outcomes, why_not)
            _print_what_next(location, queries[0], is_kept=place is None)
    finally:
        if place:
            shutil.rmtree(place, ignore_errors=True)
    if not is_equal:
        raise CommandExit(Status.FINDINGS)


def _index(location: str) -> tuple[int, float, float]:
    """Return the bytes of the index, the seconds to attach the files, and the seconds to build two indexes."""
    start_s = time.perf_counter()
    with create(location) as table:
        attached_s = time.perf_counter()
        table.create_index("flight_id", kind="bloom", fpp=0.001)
        table.create_index("tailnum", kind="secondary")
        end_s = time.perf_counter()
    size_bytes = 0
    for folder, _, names in os.walk(os.path.join(location, ".skipstone")):
        size_bytes += sum(os.path.getsize(os.path.join(folder, name)) for name in names)
    return size_bytes, attached_s - start_s, end_s - attached_s


def queries_over(rows: pa.Table) -> list[Query]:
    """Return the queries, over values of the flights: needle, miss, range, IN, prefix, null."""
    field = pc.field
    needle = rows["flight_id"][rows.num_rows // 2].as_py()
    absent = needle[:-4] + ("0000" if needle[-4:] != "0000" else "1111")
    counts = rows.group_by("tailnum").aggregate([([], "count_all")])
    counts = counts.filter(pc.is_valid(counts["tailnum"]))
    order = [("count_all", "ascending"), ("tailnum", "ascending")]
    planes = counts.sort_by(order)["tailnum"].slice(0, 3).to_pylist()
    day = "time_hour >= '2013-07-04 04:00:00Z' AND time_hour < '2013-07-05 04:00:00Z'"
    from_, to = (pa.scalar(f"2013-07-0{n} 04:00:00Z").cast(pa.timestamp("us", "UTC")) for n in (4, 5))
    is_null = field("dep_time").is_null() & (field("month") == 2) & (field("day") == 9)
    return [
        Query("needle", f"flight_id = '{needle}'", field("flight_id") == needle),
        Query("miss", f"flight_id = '{absent}'", field("flight_id") == absent),
        Query("range", day, (field("time_hour") >= from_) & (field("time_hour") < to)),
        Query("IN", f"tailnum IN ({', '.join(map(repr, planes))})", field("tailnum").isin(planes)),
        Query("prefix", "tailnum LIKE 'D9%'", pc.starts_with(field("tailnum"), "D9")),
        Query("null", "dep_time IS NULL AND month = 2 AND day = 9", is_null),
    ]


# -- three ways -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def spark_rows(is_wanted: bool) -> Iterator[tuple[SparkRows | None, str]]:
    """Yield a function from a predicate to its rows in a local Spark, which is stopped at the end; or None and why."""
    home = os.environ.get("JAVA_HOME")
    why_not = "" if is_wanted else "not asked for"
    if is_wanted and importlib.util.find_spec("pyspark") is None:
        why_not = "PySpark is not installed: pip install 'skipstone[spark]'"
    elif is_wanted and shutil.which(os.path.join(home, "bin", "java") if home else "java") is None:
        why_not = "there is no Java: install one of version 17 or newer, or set JAVA_HOME; `make demo` does"
    if why_not:
        yield None, why_not
        return
    from pyspark.sql import SparkSession

    from ..spark_adapter import scan
    from ..spark_adapter.spark_versions import collected

    note("starting Spark ...")
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with tempfile.TemporaryDirectory(prefix="skipstone-spark-", ignore_cleanup_errors=True) as folder:
        places = {"spark.local.dir": folder, "spark.sql.warehouse.dir": os.path.join(folder, "tables")}
        builder = SparkSession.builder.master("local[*]").appName("skipstone demo")
        for name, value in (_SPARK_OPTIONS | places).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        try:
            yield lambda path, where: collected(scan(session, path, where)), ""
        finally:
            session.stop()


def _run_query(lake: Lake, query: Query, in_spark: SparkRows | None) -> Outcome:
    full_scan_ms, expected = _timed(lambda: _full_scan(lake.path, query.expression))
    skipstone_ms, (rows, files, row_groups, bytes_read) = _timed(lambda: _skipstone(lake.path, query.where))
    is_equal = same_rows(expected, rows)
    spark_ms = None
    if in_spark is not None:
        spark_ms, rows_of_spark = _timed(lambda: in_spark(lake.path, query.where))
        is_equal = is_equal and same_rows(expected, rows_of_spark)
    measured = (full_scan_ms, skipstone_ms, spark_ms)
    return Outcome(query.name, query.where, rows.num_rows, files, row_groups, bytes_read, *measured, is_equal)


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
    return all(_same_column(a.combine_chunks(), b.combine_chunks()) for a, b in pairs)


def _same_column(a: pa.Array, b: pa.Array) -> bool:
    if pa.types.is_floating(a.type):
        nans = pc.fill_null(pc.is_nan(a), False), pc.fill_null(pc.is_nan(b), False)
        a, b = (pc.if_else(nan, 0.0, values) for nan, values in zip(nans, (a, b), strict=True))
        return nans[0].equals(nans[1]) and a.equals(b)
    return a.equals(b)


# -- printing ---------------------------------------------------------------------------------------------------------


def _print_lake(lake: Lake, index_bytes: int, attach_s: float, index_s: float) -> None:
    screen = stdout()
    files = f"{count_of(lake.files, 'file')}, {count_of(lake.row_groups, 'row group')}, {bytes_text(lake.size_bytes)}"
    screen.print("The lake", style="bold")
    screen.print(f"  {count_of(lake.rows, 'flight')} of 2013 in {files}")
    screen.print(f"  {lake.path}", soft_wrap=True)
    indexes = "a Bloom filter on flight_id and the rows of each tailnum"
    screen.print(f"  attached in {attach_s:.2f} s; {indexes} in {index_s:.2f} s")
    share = 100 * index_bytes / lake.size_bytes
    screen.print(f"  the index takes {bytes_text(index_bytes)}, {share:.1f}% of the data\n")


def _print_outcomes(lake: Lake, outcomes: list[Outcome], why_not: str) -> None:
    screen = stdout()
    screen.print("The queries", style="bold")
    for outcome in outcomes:
        screen.print(f"  {outcome.name:<6}  {outcome.where}", soft_wrap=True)
    screen.print()
    in_spark = [] if why_not else ["in Spark"]
    headings = ["query", "rows", "files", "row groups", "read", "full scan", "Skipstone", *in_spark, "equal"]
    rows = [
        [
            outcome.name,
            f"{outcome.rows:,}",
            f"{outcome.files}/{lake.files}",
            f"{outcome.row_groups}/{lake.row_groups}",
            bytes_text(outcome.bytes_read),
            f"{outcome.full_scan_ms:,.0f} ms",
            f"{outcome.skipstone_ms:,.1f} ms",
            *([] if outcome.spark_ms is None else [f"{outcome.spark_ms:,.0f} ms"]),
            "yes" if outcome.equal else "NO",
        ]
        for outcome in outcomes
    ]
    screen.print(text_table(headings, rows, right=headings[1:-1]))
    screen.print(
        f"read: index and data, by Skipstone in Python, warm; the full scan reads all {bytes_text(lake.size_bytes)}."
    )
    screen.print(f"Times: the median of {_TIMES}, each from opening to rows, after a warm-up.")
    if why_not:
        screen.print(f"Spark was left out: {why_not}", style="yellow")
    else:
        screen.print("Most of Spark's time goes to its own job and Python workers, not to reading.")
    if all(outcome.equal for outcome in outcomes):
        ways = "Both ways" if why_not else "All three ways"
        screen.print(f"{ways} gave the same rows, compared in every column.\n", style="green")
    else:
        screen.print("The results DIFFER: that is a defect, please report it.\n", style="bold red")


def _print_what_next(location: str, query: Query, is_kept: bool) -> None:
    screen = stdout()
    screen.print(f"skipstone explain, for the {query.name}", style="bold")
    with open_table(location) as table:
        print_plan(table.scan(query.where))
    screen.print()
    command = "skipstone" if shutil.which("skipstone") else _shown(sys.argv[0])
    if not is_kept:
        screen.print(f"The lake was temporary. To keep one, and go on with it: {command} demo --path flights")
        return
    screen.print("Go on with it", style="bold")
    shown = _shown(location)
    for rest in (
        f'scan {shown} --where "{query.where}"',
        f"explain {shown} --where \"origin = 'JFK' AND dep_delay > 900\"",
        f"index list {shown}",
        f"ls {shown}",
    ):
        screen.print(f"  {command} {rest}", soft_wrap=True)


def _shown(path: str) -> str:
    """Return a path as one would type it here."""
    near = os.path.relpath(path)
    return shlex.quote(os.path.abspath(path) if near.startswith("..") else near)
