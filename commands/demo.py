"""`skipstone demo`: real flights as a lake, indexes over it, and queries run three ways.

1. Full scan: pyarrow reads every file and filters. The filter is written by hand for pyarrow: nothing of ours is in it.
2. Skipstone in Python: open, plan, read.
3. Skipstone in Spark: the same plan, read by Spark's executors.

Results are compared as sorted rows, in all columns. Each way runs once unmeasured, then three times, and the median is
shown; only Spark's session stays open between runs.
"""

from __future__ import annotations

import contextlib
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
from .arguments import Option
from .demo_lake import Lake, flights, write_lake
from .demo_spark import SparkMissingError, SparkWay, spark_way
from .explain import print_plan
from .options import AsJson, Ended, Status
from .output import bytes_text, count_of, note, print_json, progress, stdout, text_table

_TIMES = 3
T = TypeVar("T")


@dataclass(frozen=True)
class Query:
    """One question: for us as SQL text, for the full scan as pyarrow's expression."""

    name: str
    where: str
    expression: pc.Expression


@dataclass
class Outcome:
    """What a query took. Times are ms; `spark_ms` is None where Spark did not run."""

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


@dataclass
class DemoBuild:
    """The lake, its indexes, and what making them took (s)."""

    lake: Lake
    index_bytes: int
    attach_s: float
    index_s: float


def demo(
    path: Annotated[str | None, Option(metavar="DIR", help="Keep the lake here; by default it is temporary.")] = None,
    rows: Annotated[int | None, Option(min=1, help="Only this many flights, spread over the year.")] = None,
    spark: Annotated[bool, Option("--spark/--no-spark", help="Run the queries in Spark, too.")] = True,
    as_json: AsJson = False,
) -> None:
    """A lake of real flights, its indexes, and queries run three ways. Status 3 where results differ."""
    if not run_demo(path, rows, spark, as_json):
        raise Ended(Status.FINDINGS)


def run_demo(path: str | None, rows: int | None, with_spark: bool, as_json: bool) -> bool:
    """Runs the demo and prints it. False where results differ."""
    place = tempfile.mkdtemp(prefix="skipstone-demo-") if path is None else None
    try:
        location = os.path.join(place, "flights") if place else os.path.abspath(str(path))
        table = flights(rows)
        built = _built(table, location)
        if not as_json:
            _print_built(built)
        queries = queries_over(table)
        with _spark(with_spark) as (spark, why_not):
            outcomes = _run_queries(built.lake, queries, spark)
        is_equal = all(outcome.equal for outcome in outcomes)
        if as_json:
            summary = {"lake": asdict(built.lake), "index_bytes": built.index_bytes, "spark": why_not or "asked"}
            print_json({**summary, "queries": [asdict(outcome) for outcome in outcomes], "equal": is_equal})
        else:
            _print_outcomes(built.lake, outcomes, why_not)
            _print_explained(location, queries[0])
            _print_what_next(location, queries[0], is_kept=place is None)
        return is_equal
    finally:
        if place:
            shutil.rmtree(place, ignore_errors=True)


def _built(rows: pa.Table, location: str) -> DemoBuild:
    with progress() as report:
        lake = write_lake(rows, location, report)
        start = time.perf_counter()
        with create(location, progress=report) as table:
            attach_s = time.perf_counter() - start
            start = time.perf_counter()
            table.create_index("flight_id", kind="bloom", fpp=0.001, progress=report)
            table.create_index("tailnum", kind="secondary", progress=report)
            index_s = time.perf_counter() - start
    index_bytes = 0
    for folder, _, names in os.walk(os.path.join(location, ".skipstone")):
        index_bytes += sum(os.path.getsize(os.path.join(folder, name)) for name in names)
    return DemoBuild(lake, index_bytes, attach_s, index_s)


def queries_over(rows: pa.Table) -> list[Query]:
    """The queries, over values of the flights: needle, miss, range, IN, prefix, null."""
    field = pc.field
    needle = rows["flight_id"][rows.num_rows // 2].as_py()
    absent = needle[:-4] + ("0000" if needle[-4:] != "0000" else "1111")
    counts = rows.group_by("tailnum").aggregate([([], "count_all")])
    counts = counts.filter(pc.is_valid(counts["tailnum"]))
    order = [("count_all", "ascending"), ("tailnum", "ascending")]
    planes = counts.sort_by(order)["tailnum"].slice(0, 3).to_pylist()
    day = "time_hour >= '2013-07-04 04:00:00Z' AND time_hour < '2013-07-05 04:00:00Z'"
    from_, to = (pa.scalar(f"2013-07-0{n} 04:00:00Z").cast(pa.timestamp("us", "UTC")) for n in (4, 5))
    return [
        Query("needle", f"flight_id = '{needle}'", field("flight_id") == needle),
        Query("miss", f"flight_id = '{absent}'", field("flight_id") == absent),
        Query("range", day, (field("time_hour") >= from_) & (field("time_hour") < to)),
        Query("IN", f"tailnum IN ({', '.join(map(repr, planes))})", field("tailnum").isin(planes)),
        Query("prefix", "tailnum LIKE 'D9%'", pc.starts_with(field("tailnum"), "D9")),
        Query(
            "null",
            "dep_time IS NULL AND month = 2 AND day = 9",
            field("dep_time").is_null() & (field("month") == 2) & (field("day") == 9),
        ),
    ]


# -- three ways -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _spark(wanted: bool) -> Iterator[tuple[SparkWay | None, str]]:
    """A way through Spark, or None and why there is none."""
    with contextlib.ExitStack() as stack:
        spark, why_not = None, "" if wanted else "not asked for"
        if wanted:
            try:
                # No spinner: stderr goes elsewhere while Spark starts.
                note("starting Spark ...")
                spark = stack.enter_context(spark_way())
            except SparkMissingError as error:
                why_not = str(error)
        yield spark, why_not


def _run_queries(lake: Lake, queries: list[Query], spark: SparkWay | None) -> list[Outcome]:
    outcomes = []
    with progress() as report:
        for done, query in enumerate(queries):
            if report:
                report("asking", done, len(queries))
            outcomes.append(_run_query(lake, query, spark))
    return outcomes


def _run_query(lake: Lake, query: Query, spark: SparkWay | None) -> Outcome:
    full_scan_ms, expected = _timed(lambda: _full_scan(lake.path, query.expression))
    skipstone_ms, (got, paths, row_groups, bytes_read) = _timed(lambda: _skipstone(lake.path, query.where))
    is_equal = same_rows(expected, got)
    spark_ms = None
    if spark is not None:
        spark_ms, in_spark = _timed(lambda: spark.rows(lake.path, query.where))
        is_equal = is_equal and same_rows(expected, in_spark)
    measured = (full_scan_ms, skipstone_ms, spark_ms)
    return Outcome(query.name, query.where, got.num_rows, paths, row_groups, bytes_read, *measured, is_equal)


def _full_scan(path: str, expression: pc.Expression) -> pa.Table:
    import pyarrow.dataset as ds

    return ds.dataset(path, partitioning="hive").to_table().filter(expression)


def _skipstone(path: str, where: str) -> tuple[pa.Table, int, int, int]:
    """The rows, then files, row groups and bytes that were read for them."""
    with open_table(path) as opened:
        plan = opened.scan(where)
        rows = plan.to_table()
        groups = plan.row_groups()
        files = len(groups.column("path").unique())
        return rows, files, groups.num_rows, sum(step.bytes_read for step in plan.steps)


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    """The median of three times (ms), after one that is not measured; and what `work` gave."""
    result = work()
    times = []
    for _ in range(_TIMES):
        start = time.perf_counter()
        result = work()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times), result


def same_rows(expected: pa.Table, got: pa.Table) -> bool:
    """Whether two tables hold the same rows, in any order: null equals null, NaN equals NaN. Columns are matched by
    name; widths of numbers and units of times may differ, values may not."""
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


# -- printing ----------------------------------------------------------------------------------------------------------


def _print_built(built: DemoBuild) -> None:
    screen, lake = stdout(), built.lake
    screen.print("The lake", style="bold")
    files = f"{count_of(lake.files, 'file')}, {count_of(lake.row_groups, 'row group')}, {bytes_text(lake.size_bytes)}"
    screen.print(f"  {count_of(lake.rows, 'flight')} of 2013 in {files}")
    screen.print(f"  {lake.path}", soft_wrap=True)
    share = 100 * built.index_bytes / lake.size_bytes
    indexes = "a Bloom filter on flight_id and the rows of each tailnum"
    screen.print(f"  attached in {built.attach_s:.2f} s; {indexes} in {built.index_s:.2f} s")
    screen.print(f"  the index takes {bytes_text(built.index_bytes)}, {share:.1f}% of the data\n")


def _print_outcomes(lake: Lake, outcomes: list[Outcome], why_not: str) -> None:
    screen = stdout()
    screen.print("The queries", style="bold")
    for outcome in outcomes:
        screen.print(f"  {outcome.name:<6}  {outcome.where}", soft_wrap=True)
    screen.print()
    asks_spark = not why_not
    headings = ["query", "rows", "files", "row groups", "read", "full scan", "Skipstone", "in Spark", "equal"]
    rows = []
    for outcome in outcomes:
        spark = [] if outcome.spark_ms is None else [f"{outcome.spark_ms:,.0f} ms"]
        rows.append(
            [
                outcome.name,
                f"{outcome.rows:,}",
                f"{outcome.files}/{lake.files}",
                f"{outcome.row_groups}/{lake.row_groups}",
                bytes_text(outcome.bytes_read),
                f"{outcome.full_scan_ms:,.0f} ms",
                f"{outcome.skipstone_ms:,.1f} ms",
                *spark,
                "yes" if outcome.equal else "NO",
            ]
        )
    if not asks_spark:
        headings.remove("in Spark")
    screen.print(text_table(headings, rows, right=headings[1:-1]))
    screen.print(
        f"read: index and data, by Skipstone in Python, warm; the full scan reads all {bytes_text(lake.size_bytes)}."
    )
    screen.print(f"Times: the median of {_TIMES}, each from opening to rows, after a warm-up.")
    if asks_spark:
        screen.print("Most of Spark's time goes to its own job and Python workers, not to reading.")
    else:
        screen.print(f"Spark was left out: {why_not}", style="yellow")
    if all(outcome.equal for outcome in outcomes):
        ways = "All three ways" if asks_spark else "Both ways"
        screen.print(f"{ways} gave the same rows, compared in every column.\n", style="green")
    else:
        screen.print("The results DIFFER: that is a defect, please report it.\n", style="bold red")


def _print_explained(location: str, query: Query) -> None:
    stdout().print(f"skipstone explain, for the {query.name}", style="bold")
    with open_table(location) as opened:
        print_plan(opened.scan(query.where))
    stdout().print()


def _print_what_next(location: str, query: Query, is_kept: bool) -> None:
    screen = stdout()
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
    """A path as one would type it here."""
    near = os.path.relpath(path)
    return shlex.quote(os.path.abspath(path) if near.startswith("..") else near)
