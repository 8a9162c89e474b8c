"""A needle by value: rows of TPC-H lineitem by a random uuid and by keys, from opening the index to the rows.

The lake is 200 files x 3 row groups at SF5 (SKIPSTONE_BENCH_SF, SKIPSTONE_BENCH_FILES and SKIPSTONE_BENCH_ROUNDS make
it smaller), once with Parquet's own bloom filters on the uuid and on l_partkey, and once without, for the peers. Ours
read the former, by a secondary index or by our own filters, kept in two indexes beside it. Every call asks for a key of
its own, opens what it needs, and returns whole rows. Each contender has a process of its own. It is warm: what it has
decoded of our immutable runs, and DuckDB of the files' metadata, is there already; requests and bytes are those of the
first call. What DuckDB reads for us is not counted. The processes at the end are timed whole: interpreter, imports and
work. Indexes and questions are made once, in some minutes, and anew where the code is another.

What was learned stands in docs/decisions/0004-reading-a-needle.md.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from skipstone import col
from skipstone.engine.choices import IndexKindName

from bench.support.cached_folder import cached_folder, code_fingerprint
from bench.support.data import CACHE, lineitem, random_uuids, sample
from bench.support.harness import Answer, Bench
from bench.support.needle_peers import Delta, DuckDB, Places, Where, ask_polars, ask_spark, spark_session, write_log
from bench.support.targets import Target, verdicts

KEY = "event_id"
TWO_COLUMNS = ["l_orderkey", "l_extendedprice"]
ROUNDS = 15
MANY = 1_000
MISSES = 2_000
FILTERS, PLAIN = "DuckDB + Parquet filters", "DuckDB"
BY_POSITION = "DuckDB, file_row_number IN"
TARGETS = [
    Target("uuid, hit", FILTERS, 25, 52),
    Target("uuid, miss", FILTERS, 1.5, 45),
    Target("orderkey", "deltalake", 10, 6.5),
    Target("partkey IN 3, all columns", BY_POSITION, 1.1, 1),
    Target("partkey IN 3, two columns", FILTERS, 100, 376, "partkey IN 3, all columns"),
    Target("1,000 uuids", BY_POSITION, 1.3, 1),
]


@dataclass
class Needles:
    """The lakes, our indexes and who is asked.

    lake, plain    with Parquet's filters and without
    folder         holds our indexes of each kind, a Delta log, and what is asked
    stack          ends Spark where it was begun
    """

    lake: Path
    plain: Path
    folder: Path
    stack: contextlib.ExitStack

    def __post_init__(self) -> None:
        self.secondary, self.blooms = self.folder / "secondary", self.folder / "blooms"
        self.duckdb, self.duckdb_plain = DuckDB(self.lake), DuckDB(self.plain)
        self.delta = Delta(self.folder / "delta")
        asked = json.loads((self.folder / "asked.json").read_text(encoding="utf-8"))
        self.keys: dict[str, list[Where]] = {name: [(c, v) for c, v in some] for name, some in asked["keys"].items()}
        self.places: dict[str, list[Places]] = asked["places"]

    @cached_property
    def spark(self) -> Any:
        folder = self.stack.enter_context(tempfile.TemporaryDirectory())
        return self.stack.enter_context(spark_session(Path(folder)))

    def ask_spark(self, lake: Path) -> Callable[..., pa.Table]:
        """By Spark, which begins when it is first asked."""
        asks: list[Callable[..., pa.Table]] = []

        def ask(*arguments: Any) -> pa.Table:
            if not asks:
                asks.append(ask_spark(self.spark, lake))
            return asks[0](*arguments)

        return ask

    def ours(self, index: Path, columns: Sequence[str] | None = None) -> Callable[[Where], Answer]:
        def ask(where: Where) -> Answer:
            column, values = where
            with ss.open(self.lake, index_path=index) as table:
                predicate = col(column) == values[0] if len(values) == 1 else col(column).is_in(values)
                rows = table.scan(predicate, columns=columns).to_table()
                data, index_reads = table.handle.storage.reading(), table.handle.index_storage.reading()
            return Answer(rows, data[0] + index_reads[0], data[1] + index_reads[1])

        return ask


def main() -> None:
    sf = float(os.environ.get("SKIPSTONE_BENCH_SF", "5"))
    files = int(os.environ.get("SKIPSTONE_BENCH_FILES", "200"))
    rounds = int(os.environ.get("SKIPSTONE_BENCH_ROUNDS", ROUNDS))
    lake, plain = lineitem(sf=sf, files=files, row_groups=3), lineitem(sf=sf, files=files, row_groups=3, blooms=())
    made = cached_folder(CACHE / f"needle-{sf:g}-{files}", partial(_make, lake, plain), code_fingerprint())
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        needles = Needles(lake, plain, made.folder, stack)
        bench = Bench(
            "needle",
            f"A needle in lineitem SF{sf:g}: {files} files x 3 row groups",
            rerun="make bench NAME=needle",
            libraries=["duckdb", "polars", "deltalake", "pyspark"],
        )
        _points(bench, needles)
        _lists(bench, needles)
        _many(bench, needles)
        _processes(bench, needles, folder)
        bench.run(rounds, apart=True)
        built = json.loads((made.folder / "built.json").read_text(encoding="utf-8"))
        bench.report([*verdicts(TARGETS, bench.figures()), "", *built, "", *_false_reads(needles)])


def _make(lake: Path, plain: Path, folder: Path) -> None:
    """Builds our indexes; writes down what that took, and what will be asked, with the places of the rows."""
    (folder / "built.json").write_text(json.dumps(_built(lake, folder)), encoding="utf-8")
    write_log(plain, folder / "delta")
    numbers = sample(lake, "l_partkey", 60, seed=3)
    many = sample(lake, KEY, 4 * MANY, seed=8)
    keys: dict[str, list[Where]] = {
        "hits": [(KEY, [key]) for key in sample(lake, KEY, 200, seed=1)],
        "orders": [("l_orderkey", [key]) for key in sample(lake, "l_orderkey", 200, seed=6)],
        "threes": [("l_partkey", numbers[i : i + 3]) for i in range(0, len(numbers), 3)],
        "many": [(KEY, many[start : start + MANY]) for start in range(0, len(many), MANY)],
    }
    places = {name: list(map(DuckDB(lake).places, keys[name][:20])) for name in ("hits", "threes", "many")}
    (folder / "asked.json").write_text(json.dumps({"keys": keys, "places": places}), encoding="utf-8")


def _points(bench: Bench, needles: Needles) -> None:
    """One row, and none."""
    misses = [(KEY, [key]) for key in random_uuids(200, np.random.default_rng(2)).to_pylist()]
    orders, expected_places = needles.keys["orders"], needles.places["hits"]
    _point(bench, "uuid, hit", needles, needles.keys["hits"])
    bench.case("uuid, hit", BY_POSITION, needles.duckdb.rows, setup=_next(expected_places), kind="floor")
    bench.case("uuid, hit", "pyarrow, row group known", _row_groups, setup=_next(expected_places), kind="floor")
    key_only = _columns_of_row_groups([KEY])
    bench.case("uuid, hit", "pyarrow, key column only", key_only, setup=_next(expected_places), kind="floor")
    _point(bench, "uuid, miss", needles, misses)
    bench.case("orderkey", "skipstone", needles.ours(needles.secondary), setup=_next(orders), kind="us")
    _peers(bench, "orderkey", needles, orders)


def _point(bench: Bench, row: str, needles: Needles, keys: list[Where]) -> None:
    bench.case(row, "skipstone, secondary", needles.ours(needles.secondary), setup=_next(keys), kind="us")
    bench.case(row, "skipstone, filters", needles.ours(needles.blooms), setup=_next(keys))
    _peers(bench, row, needles, keys)


def _lists(bench: Bench, needles: Needles) -> None:
    """A few keys, whose rows lie in many files."""
    threes, expected_places = needles.keys["threes"], needles.places["threes"]
    for row, columns in (("partkey IN 3, all columns", None), ("partkey IN 3, two columns", TWO_COLUMNS)):
        ours = needles.ours(needles.secondary, columns)
        bench.case(row, "skipstone, secondary", ours, setup=_next(threes), kind="us")
        filters = needles.ours(needles.blooms, columns)
        bench.case(row, "skipstone, filters", filters, setup=_next(threes), every=3)
        _peers(bench, row, needles, threes, columns)
        by_position = _with_columns(needles.duckdb.rows, columns)
        bench.case(row, BY_POSITION, by_position, setup=_next(expected_places), kind="floor")
        groups = _row_groups if columns is None else _columns_of_row_groups(columns)
        bench.case(row, "pyarrow, row groups known", groups, setup=_next(expected_places), kind="floor", every=5)


def _many(bench: Bench, needles: Needles) -> None:
    """Many keys at once."""
    row, keys, expected_places = "1,000 uuids", needles.keys["many"], needles.places["many"]
    bench.case(row, "skipstone, secondary", needles.ours(needles.secondary), setup=_next(keys), kind="us")
    bench.case(row, FILTERS, needles.duckdb.ask, setup=_next(keys), every=5)
    bench.case(row, "polars", lambda where: ask_polars(needles.plain, where), setup=_next(keys), every=8)
    bench.case(row, BY_POSITION, needles.duckdb.rows, setup=_next(expected_places), kind="floor", every=2)


def _peers(bench: Bench, row: str, needles: Needles, keys: list[Where], columns: Sequence[str] | None = None) -> None:
    """Everybody else; the slow ones in few rounds."""
    peers: list[tuple[str, Callable[..., pa.Table], int]] = [
        (FILTERS, needles.duckdb.ask, 1),
        (PLAIN, needles.duckdb_plain.ask, 3),
        ("polars + Parquet filters", lambda *arguments: ask_polars(needles.lake, *arguments), 8),
        ("polars", lambda *arguments: ask_polars(needles.plain, *arguments), 8),
        ("deltalake", needles.delta.ask, 1 if row == "orderkey" else 5),
        ("Spark + Parquet filters", needles.ask_spark(needles.lake), 5 if row == "orderkey" else 8),
        ("Spark", needles.ask_spark(needles.plain), 14),
    ]
    for contender, ask, every in peers:
        bench.case(row, contender, _with_columns(ask, columns), setup=_next(keys), every=every)


def _with_columns(ask: Callable[..., pa.Table], columns: Sequence[str] | None) -> Callable[[Any], pa.Table]:
    return lambda where: ask(where, columns)


def _row_groups(places: Places) -> None:
    _columns_of_row_groups(None)(places)


def _columns_of_row_groups(columns: Sequence[str] | None) -> Callable[[Places], None]:
    """What pyarrow takes for the row groups that hold some rows."""

    def read(places: Places) -> None:
        for path, rows in places.items():
            with pq.ParquetFile(path) as file:
                counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
                for group in np.unique(np.searchsorted(np.cumsum(counts), rows, side="right")):
                    file.read_row_group(int(group), columns=columns)

    return read


def _next(keys: list) -> Callable[[], object]:
    cycle: Iterator = itertools.cycle(keys)
    return lambda: next(cycle)


def _built(lake: Path, folder: Path) -> list[str]:
    """Builds our indexes; what each took, against reading the same column."""
    read_s = {column: _timed(partial(_read_column, lake, column)) for column in (KEY, "l_partkey")}
    lines = [
        "## Builds",
        "",
        "| index | s | MB | pyarrow reads the column, s | ratio |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    places: list[tuple[IndexKindName, str]] = [("secondary", "secondary"), ("bloom", "blooms")]
    for kind, place in places:
        table = ss.create(lake, partitioning=None, index_path=folder / place)
        for column in (KEY, "l_partkey"):
            options: dict[str, Any] = {"fpp": 0.001} if kind == "bloom" else {}
            took = _timed(partial(table.create_index, column, kind, **options))
            size = next(
                row["size_bytes"]
                for row in table.indexes().to_pylist()
                if row["kind"] == kind and row["columns"] == [column]
            )
            ratio = took / read_s[column]
            lines.append(f"| {kind}({column}) | {took:.3g} | {size / 1e6:.3g} | {read_s[column]:.3g} | {ratio:.3g} |")
    return lines


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _read_column(lake: Path, column: str) -> None:
    for path in sorted(lake.glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for group in range(file.metadata.num_row_groups):
                file.read_row_group(group, columns=[column])


def _processes(bench: Bench, needles: Needles, folder: Path) -> None:
    """Whole processes: what a cold start costs."""
    missing = random_uuids(1, np.random.default_rng(4)).to_pylist()[0]
    opened = f"ss.open({str(needles.lake)!r}, index_path={str(needles.blooms)!r})"
    look_up = f"{opened}.scan(ss.col({KEY!r}) == {missing!r})"
    caches = (folder / f"numba-{n}" for n in itertools.count())

    def process(code: str, fresh_cache: bool = False) -> Callable[[], str]:
        def run() -> str:
            environment = dict(os.environ)
            if fresh_cache:
                environment["NUMBA_CACHE_DIR"] = str(next(caches))
            finished = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
            )
            return finished.stdout

        return run

    bench.case("process: import", "import skipstone", process("import pyarrow, skipstone"), kind="us")
    bench.case("process: import", "import pyarrow", process("import pyarrow"), kind="floor")
    counted = f"import skipstone as ss; print({look_up}.files().num_rows)"
    bench.case("process: open + prune one value", "skipstone", process(counted), kind="us")
    bench.case("process: open + prune one value", "import pyarrow", process("import pyarrow; print(0)"), kind="floor")
    first = f"import skipstone as ss; print({look_up}.to_table().num_rows)"
    bench.case("process: first scan after install", "skipstone", process(first, fresh_cache=True), kind="us")


def _false_reads(needles: Needles) -> list[str]:
    """How many of many misses open a data file at all, and how many row groups they read."""
    lines = ["## Misses", ""]
    for title, index in (("secondary", needles.secondary), ("filters", needles.blooms)):
        table = ss.open(needles.lake, index_path=index)
        opened = groups = 0
        for key in random_uuids(MISSES, np.random.default_rng(5)).to_pylist():
            group_count = table.scan(col(KEY) == key).row_groups().num_rows
            opened += group_count > 0
            groups += group_count
        share, each = opened / MISSES, groups / MISSES
        lines.append(
            f"- {title}: {share:.2%} of {MISSES:,} open a data file (at most 5%); {each:.4f} false row groups each"
        )
    return lines


if __name__ == "__main__":
    main()
