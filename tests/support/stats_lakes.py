"""A small lake for tests of statistics, with statistics of one column, and the answers that it must give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from index_lakes import expected, found
from lake_strategies import live_paths, make_file

ROWS = 8


def stats_lake(root: Path, files: int = 4, **options: object) -> ss.Table:
    """In file n, of two row groups, x goes from 10 n on, y from 1000 - 10 n down and s follows y as text; statistics
    of x alone unless `columns` names others."""
    for number in range(files):
        make_file(root, f"{number}.parquet", file_columns(number), row_group_size=ROWS // 2)
    return ss.create(root, **({"columns": ["x"]} | options))


def file_columns(number: int) -> dict:
    y = [1000 - 10 * number - i for i in range(ROWS)]
    return {"x": [10 * number + i for i in range(ROWS)], "y": y, "s": [f"{v:05}" for v in y]}


def index_row(table: ss.Table, column: str) -> dict:
    """The row of `indexes()` with the statistics of a column."""
    return next(row for row in table.indexes().to_pylist() if row["kind"] == "stats" and column in row["columns"])


def runs_of(table: ss.Table, column: str) -> list[str]:
    found = table.handle.instant.index_of("stats", table.handle.instant.columns[column])
    return [] if found is None else [run.path for run in found.runs]


def stored_files(root: Path) -> dict[str, int]:
    return {str(p): p.stat().st_size for p in (root / ".skipstone").rglob("*") if p.is_file() and p.name != "HINT"}


def check_answers(table: ss.Table, root: Path) -> None:
    """Counts and rows of predicates over all columns are those of the live files."""
    rows = pa.concat_tables([pq.read_table(root / path, columns=["x", "y", "s"]) for path in live_paths(table)])
    for where in (
        *("y = 1000", "y = 299", "y < 971", "y IS NULL", "NOT (y > 300) AND x > 0", "y = 300 AND x = 700"),
        *("s = '00299' OR y = 1000", "y = 989 OR y = 979 OR x = 31"),
    ):
        assert found(table, where, "x") == expected(rows, where, "x"), where
        assert table.scan(where).count() == len(expected(rows, where, "x")), where


def once(work: Callable[[], object]) -> Callable[..., None]:
    """Progress that does something at the first call: another writer acts while an index is built."""
    left = [work]

    def progress(*_: object) -> None:
        if left:
            left.pop()()

    return progress
