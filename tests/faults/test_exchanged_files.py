"""Two index files of one length that were exchanged: reads are right, or raise a CorruptionError."""

from __future__ import annotations

import warnings
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from skipstone.hfile_like import SortedFileReader

GROUPS, ROWS = 2, 20


def _rows(commit: int) -> pa.Table:
    """Each row group of a commit has its own range and texts: in reverse order in every other commit."""
    groups = range(GROUPS) if commit % 2 else reversed(range(GROUPS))
    numbers = [11_111_111 * (commit + 1) + 1_111 * group + i for group in groups for i in range(ROWS)]
    texts = [f"{number:08x}" for number in numbers]
    return pa.table({"n": numbers, "text": texts, "other": [text[::-1] for text in texts]})


def _lake(root: Path, commits: int) -> ss.Table:
    """Commits of the same shape, each with statistics and filters of two columns of like values."""
    table = ss.create(root, schema=_rows(0).schema)
    for column in ("text", "other"):
        table.create_index(column, kind="bloom", fpp=0.01)
    for commit in range(commits):
        with table.transaction() as tx:
            with ss.TaskWriter(tx.task_spec(row_group_rows=ROWS)) as task:
                task.write(_rows(commit))
            tx.add_task(task.result)
    return table


def _layout(path: Path) -> list[object]:
    """The length of a file, and where its parts are."""
    with SortedFileReader(path) as reader:
        return [path.stat().st_size, reader.groups(), reader.row_tables()]


def _alike(root: Path, folder: str, commits: int) -> tuple[Path, Path, Path]:
    """A lake below `root`, and two of its index files in a folder of one length and layout. Names of transactions
    are random, and compress to different lengths: several lakes are tried."""
    for attempt in range(30):
        lake = root / str(attempt)
        with _lake(lake, commits) as table:
            assert table.verify(deep=True) == []
            named = {run.path for index in table.handle.instant.indexes for run in index.runs}
        index = lake / ".skipstone"
        paths = sorted((index / folder).rglob("*.sbf"))
        if folder == "runs":
            paths = [path for path in paths if str(path.relative_to(index)) in named]
        for one, other in combinations(paths, 2):
            if _layout(one) == _layout(other) and one.read_bytes() != other.read_bytes():
                return lake, one, other
    raise AssertionError("no two files have one length")


def _wrong_reads(root: Path, commits: int, *, strict: bool) -> list[object]:
    """Looks up a value of every row group and column: the CorruptionErrors, and the values that were not found."""
    wrong: list[object] = []
    for commit in range(commits):
        rows = _rows(commit)
        for row in (ROWS * group + 7 for group in range(GROUPS)):
            for column in rows.column_names:
                value = rows.column(column)[row].as_py()
                try:
                    found = ss.open(root, strict=strict).scan(ss.col(column) == value).to_table()
                except ss.CorruptionError as error:
                    wrong.append(error)
                    continue
                if found.column(column).to_pylist() != [value]:
                    wrong.append((column, value))
    return wrong


@pytest.mark.parametrize("folder, commits", [("tasks", 6), ("runs", 1)])
def test_exchanged_index_files_are_found(tmp_path: Path, folder: str, commits: int) -> None:
    lake, one, other = _alike(tmp_path, folder, commits)
    assert _wrong_reads(lake, commits, strict=True) == []
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert _wrong_reads(lake, commits, strict=False) == [], "the index is left out, and every row found"
    wrong = _wrong_reads(lake, commits, strict=True)
    assert wrong and all(isinstance(error, ss.CorruptionError) for error in wrong)
    with ss.open(lake) as table:
        found = {finding.path for finding in table.verify()}
    assert {str(path.relative_to(lake / ".skipstone")) for path in (one, other)} <= found
