"""A small lake for tests of statistics, with statistics of one column, and what it must answer.

stats_lake       files whose columns each tell the file and the row
check_answers    counts and rows of predicates over all columns are those of the live files
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import skipstone as ss
from lake_strategies import live_paths, make_file

ROWS = 8


def stats_lake(root: Path, files: int = 4, **options: object) -> ss.Table:
    """In file n, of two row groups, x goes from 10 n on, y from 1000 - 10 n down and s follows y as text; statistics
    of x alone unless `columns` says otherwise."""
    for number in range(files):
        make_file(root, f"{number}.parquet", file_columns(number), row_group_size=ROWS // 2)
    return ss.create(root, **({"columns": ["x"]} | options))


def file_columns(number: int) -> dict:
    y = [1000 - 10 * number - i for i in range(ROWS)]
    return {"x": [10 * number + i for i in range(ROWS)], "y": y, "s": [f"{v:05}" for v in y]}


def index_row(table: ss.Table, column: str) -> dict:
    """What `indexes()` says of the statistics that a column is in."""
    return next(row for row in table.indexes().to_pylist() if row["kind"] == "stats" and column in row["columns"])


def runs_of(table: ss.Table, column: str) -> list[str]:
    found = table.handle.instant.index_of("stats", table.handle.instant.columns[column])
    return [] if found is None else [run.path for run in found.runs]


def stored_files(root: Path) -> dict[str, int]:
    return {str(p): p.stat().st_size for p in (root / ".skipstone").rglob("*") if p.is_file() and p.name != "HINT"}


def check_answers(table: ss.Table, root: Path) -> None:
    """Counts and rows of predicates over all columns are those of the live files."""
    rows = [row for path in live_paths(table) for row in pq.read_table(root / path).to_pylist()]
    tests: dict[str, Callable[[dict], bool]] = {
        "y = 1000": lambda r: r["y"] == 1000,
        "y = 299": lambda r: r["y"] == 299,
        "y < 971": lambda r: r["y"] < 971,
        "y IS NULL": lambda r: False,
        "NOT (y > 300) AND x > 0": lambda r: r["y"] <= 300 and r["x"] > 0,
        "y = 300 AND x = 700": lambda r: r["y"] == 300 and r["x"] == 700,
        "s = '00299' OR y = 1000": lambda r: r["s"] == "00299" or r["y"] == 1000,
        "y = 989 OR y = 979 OR x = 31": lambda r: r["y"] in (989, 979) or r["x"] == 31,
    }
    for where, test in tests.items():
        wanted = sum(map(test, rows))
        assert table.scan(where).count() == table.scan(where).to_table().num_rows == wanted, where
