"""`skipstone demo`: real flights as a lake, indexes over it, and queries run three ways: full scan, Skipstone, Spark.

The full scan is pyarrow's, whose filter is written for pyarrow. The demo compares the results as sorted rows, in all
columns. Each way runs once unmeasured, then three times, and the median is shown; only Spark's session stays open.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
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
from .arguments import AsJson, Option, Status
from .demo_lake import Lake, flights, write_lake
from .output import bytes_text, count_of, note, print_json, stdout, text_table

_TIMES = 3
_SPARK_OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
}
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
    place = tempfile.mkdtemp(prefix="skipstone-demo-") if path is None else None
    try:
        location = os.path.join(place, "flights") if place else os.path.abspath(str(path))
        table = flights(rows)
        lake = write_lake(table, location)
        with create(location) as made:
            made.create_index("flight_id", kind="bloom")
            made.create_index("tailnum", kind="secondary")
        with spark_rows(spark) as (in_spark, why_not):
            outcomes = [_run_query(lake, *query, in_spark) for query in queries_over(table)]
        is_equal = all(outcome.equal for outcome in outcomes)
        if as_json:
            summary = {"lake": asdict(lake), "spark": why_not or "asked"}
            print_json({**summary, "queries": [asdict(outcome) for outcome in outcomes], "equal": is_equal})
        else:
            _print_outcomes(lake, outcomes, why_not, is_kept=place is None)
    finally:
        if place:
            shutil.rmtree(place, ignore_errors=True)
    return Status.OK if is_equal else Status.FINDINGS


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
    with tempfile.TemporaryDirectory(prefix="skipstone-spark-", ignore_cleanup_errors=True) as folder:
        places = {"spark.local.dir": folder, "spark.sql.warehouse.dir": os.path.join(folder, "tables")}
        builder = SparkSession.builder.master("local[*]").appName("skipstone demo")
        session = builder.config(map={**_SPARK_OPTIONS, **places}).getOrCreate()
        try:
            yield lambda path, where: collected(scan(session, path, where)), ""
        finally:
            session.stop()


def _run_query(lake: Lake, name: str, where: str, expression: pc.Expression, in_spark: SparkRows | None) -> Outcome:
    full_scan_ms, expected = _timed(lambda: _full_scan(lake.path, expression))
    skipstone_ms, (rows, files, row_groups, bytes_read) = _timed(lambda: _skipstone(lake.path, where))
    is_equal = same_rows(expected, rows)
    spark_ms = None
    if in_spark is not None:
        spark_ms, rows_of_spark = _timed(lambda: in_spark(lake.path, where))
        is_equal = is_equal and same_rows(expected, rows_of_spark)
    read, measured = (files, row_groups, bytes_read), (full_scan_ms, skipstone_ms, spark_ms)
    return Outcome(name, where, rows.num_rows, *read, *measured, is_equal)


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


# -- printing ---------------------------------------------------------------------------------------------------------


def _print_outcomes(lake: Lake, outcomes: list[Outcome], why_not: str, is_kept: bool) -> None:
    screen = stdout()
    files = f"{count_of(lake.files, 'file')}, {count_of(lake.row_groups, 'row group')}, {bytes_text(lake.size_bytes)}"
    screen.print(f"{count_of(lake.rows, 'flight')} of 2013 in {files}", style="bold")
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
    screen.print(f"Times: the median of {_TIMES}, each from opening to rows, after a warm-up.")
    if why_not:
        screen.print(f"Spark was left out: {why_not}", style="yellow")
    if all(outcome.equal for outcome in outcomes):
        ways = "Both ways" if why_not else "All three ways"
        screen.print(f"{ways} gave the same rows, compared in every column.\n", style="green")
    else:
        screen.print("The results DIFFER: that is a defect, please report it.\n", style="bold red")
    kept = f'skipstone explain {lake.path} --where "{outcomes[0].where}"'
    shown = kept if is_kept else "skipstone demo --path flights keeps the lake"
    screen.print(f"Go on with it: {shown}", soft_wrap=True)
