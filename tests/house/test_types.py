"""The words that arguments take, as types: mypy refuses another word, and so does the call, with an error of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import only_in_test_all
from skipstone.engine import choices
from skipstone.engine.clustering import ORDERS
from skipstone.engine.lakes import KINDS

REPOSITORY = Path(__file__).parents[2]
CALLS = """
import skipstone as ss
table = ss.open("lake", fallback={list!r}, cache={coarse!r})
ss.create("lake", source={delta!r})
table.create_index("a", kind={bloom!r})
table.create_index("a", "bloom", maintain={refresh!r})
table.refresh_index("a", kind={stats!r})
table.drop_index("a", {secondary!r})
table.scan("a = 1", mode={read_optimized!r})
table.scan("a = 1", reader={duckdb!r})
table.scan("a = 1", refresh={sync!r})
table.lookup([1], on="a", reader={pyarrow!r})
table.sync(new_columns={report!r})
with table.transaction() as tx:
    tx.overwrite({written!r})
"""


class _Same(dict):
    def __missing__(self, word: str) -> str:
        return word


class _Misspelt(dict):
    def __missing__(self, word: str) -> str:
        return f"{word}s"


@only_in_test_all  # by default that the types have the words that calls take: below
def test_mypy_takes_the_words_and_no_others(tmp_path: Path) -> None:
    checked = REPOSITORY / ".cache" / "typecheck"
    checked.mkdir(parents=True, exist_ok=True)
    if not (checked / "skipstone").is_symlink():
        (checked / "skipstone").symlink_to("../..")
    (tmp_path / "right.py").write_text(CALLS.format_map(_Same()))
    (tmp_path / "wrong.py").write_text(CALLS.format_map(_Misspelt()))
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", tmp_path / "right.py", tmp_path / "wrong.py"],
        cwd=REPOSITORY,
        env={**os.environ, "MYPYPATH": str(checked)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    errors = [line.rpartition("/")[2].split(":")[:2] for line in run.stdout.splitlines() if "[arg-type]" in line]
    assert run.returncode == 1 and {name for name, _ in errors} == {"wrong.py"}, run.stdout
    calls = [number for number, line in enumerate(CALLS.splitlines(), 1) if "!r}" in line]
    assert sorted({int(number) for _, number in errors}) == calls, run.stdout


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ss.Table:
    root = tmp_path_factory.mktemp("lake")
    pq.write_table(pa.table({"a": [1, 2]}), root / "a.parquet")
    return ss.create(root)


@pytest.mark.parametrize(
    "call",
    [
        lambda table: ss.open(table.location, fallback="lists"),
        lambda table: ss.open(table.location, cache="coarses"),
        lambda table: ss.create(table.location, source="deltas"),
        lambda table: table.create_index("a", kind="blom"),
        lambda table: table.create_index("a", kind="bloom", maintain="never"),
        lambda table: table.refresh_index("a", kind="blom"),
        lambda table: table.drop_index("a", "blom"),
        lambda table: table.scan(mode="snapshots"),
        lambda table: table.scan(reader="polars"),
        lambda table: table.scan(refresh="always"),
        lambda table: table.sync(new_columns="ignore"),
    ],
)
def test_the_error_at_run_time_is_ours(table: ss.Table, call: Callable[[ss.Table], object]) -> None:
    with pytest.raises(ss.InvalidArgumentError) as refused:
        call(table)
    assert any(sign in str(refused.value) for sign in ("'", '"'))


def test_the_words_are_those_that_are_taken() -> None:
    assert set(get_args(choices.TableSource)) == set(KINDS)
    assert set(get_args(choices.Curve)) == set(ORDERS)
