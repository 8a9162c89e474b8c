"""The words that arguments accept, as types: mypy refuses another word, and the call raises our error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import skipstone as ss
from example_counts import only_in_test_all
from lake_strategies import make_lake
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
def test_mypy_accepts_only_these_words(tmp_path: Path) -> None:
    checked = REPOSITORY / ".cache" / "typecheck"
    checked.mkdir(parents=True, exist_ok=True)
    if not (checked / "skipstone").is_symlink():
        (checked / "skipstone").symlink_to("../..")
    (tmp_path / "right.py").write_text(CALLS.format_map(_Same()))
    (tmp_path / "wrong.py").write_text(CALLS.format_map(_Misspelt()))
    files = (tmp_path / "right.py", tmp_path / "wrong.py")
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", *files]
    environment = {**os.environ, "MYPYPATH": str(checked)}
    run = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    errors = [line.rpartition("/")[2].split(":")[:2] for line in run.stdout.splitlines() if "[arg-type]" in line]
    assert run.returncode == 1 and {name for name, _ in errors} == {"wrong.py"}, run.stdout
    calls = [number for number, line in enumerate(CALLS.splitlines(), 1) if "!r}" in line]
    assert sorted({int(number) for _, number in errors}) == calls, run.stdout


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> ss.Table:
    return ss.open(make_lake(tmp_path_factory.mktemp("lake"), [{"a": [1, 2]}]))


@pytest.mark.parametrize("call", [line.strip() for line in CALLS.splitlines() if "!r}" in line])
def test_a_call_with_another_word_raises_our_error(table: ss.Table, call: str) -> None:
    code = call.format_map(_Misspelt()).replace('"lake"', "table.location")
    with table.transaction() as tx, pytest.raises(ss.InvalidArgumentError) as refused:
        exec(code, {"ss": ss, "table": table, "tx": tx})
    assert any(sign in str(refused.value) for sign in ("'", '"'))


def test_the_types_have_the_words_that_calls_accept() -> None:
    assert set(get_args(choices.TableSource)) == set(KINDS)
    assert set(get_args(choices.Curve)) == set(ORDERS)
