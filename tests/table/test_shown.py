"""What a notebook and a prompt show of results: tables as rows, versions with the changes of a call."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import make_file
from skipstone.engine.shown import text_of

ODD = "<script>alert(1)</script>"


@pytest.fixture
def table(tmp_path: Path) -> ss.Table:
    for number in range(3):
        pq.write_table(pa.table({ODD: [f"s{number}"] * 5, "n": range(5)}), tmp_path / f"{number}.parquet")
    return ss.create(tmp_path)


def test_versions_are_numbers_that_show_what_was_done(table: ss.Table, tmp_path: Path) -> None:
    nothing = table.sync()
    assert (nothing, repr(nothing), f"{nothing}") == (1, "version 1: nothing new", "1")
    pq.write_table(pa.table({ODD: ["x"], "n": [2], "new": [3]}), tmp_path / "3.parquet")
    (tmp_path / "0.parquet").unlink()
    (tmp_path / "4.parquet").write_bytes(b"PAR1")
    result = table.sync()
    assert str(result) == "version 2: 1 added, 1 removed, 1 quarantined; new columns new"
    assert (result + 1, f"{result:03d}", json.dumps([result])) == (3, "002", "[2]")
    made = table.create_index([ODD, "n"], kind="secondary")
    assert made == table.version == 3 and repr(made).startswith(f"version 3: secondary({ODD}, n), ")
    assert (f"{made}", json.dumps(made), pickle.loads(pickle.dumps(made))) == ("3", "3", 3)
    assert repr(pickle.loads(pickle.dumps(made))) == repr(made)
    assert repr(table.refresh_index([ODD, "n"], kind="secondary")) == repr(made)


@pytest.mark.parametrize("call", ["indexes()", "history()", "files()", "partitions()", "savepoints()", "slices()"])
def test_tables_stay_tables(table: ss.Table, call: str) -> None:
    rows = eval(f"table.{call}", {"table": table})
    assert type(rows) is pa.Table
    assert rows.equals(pa.Table.from_pylist(rows.to_pylist(), rows.schema.remove_metadata()))


def test_ipython_shows_rows(table: ss.Table) -> None:
    pytest.importorskip("IPython", reason='IPython is not installed: pip install -e ".[dev]"')
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        table.create_index(ODD, kind="bloom")
        shown, _ = shell.display_formatter.format(table.indexes())
        lines = shown["text/plain"].splitlines()
        assert lines[0].split()[:3] == ["name", "columns", "kind"] and len(lines) == 2 + 2
        assert lines[3].startswith(f"bloom({ODD})") and " 3  " in lines[3] and "B  {" in lines[3]
        assert "<table>" in shown["text/html"] and ODD not in shown["text/html"]
        history = shell.display_formatter.format(table.history())[0]["text/plain"]
        assert "create" in history and "+00:00" not in history
        other = pa.table({"a": [1]})
        assert shell.display_formatter.format(other)[0] == {"text/plain": repr(other)}
    finally:
        InteractiveShell.clear_instance()


def test_an_interactive_python_shows_rows(table: ss.Table) -> None:
    words = f"import skipstone as ss, pyarrow as pa\nss.open({table.location!r}).files()\npa.table({{'a': [1]}})\n"
    done = subprocess.run([sys.executable, "-i", "-q"], input=words, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].split()[:4] == ["file_id", "partition", "path", "size_bytes"]
    assert [line.split()[1] for line in lines[2:5]] == ["0.parquet", "1.parquet", "2.parquet"]
    assert lines[5] == "pyarrow.Table"


def test_many_rows_are_cut(tmp_path: Path) -> None:
    for number in range(70):
        make_file(tmp_path, f"{'x' * 80}{number}.parquet", {"n": [number]})
    lines = text_of(ss.create(tmp_path).files()).splitlines()
    assert len(lines) == 2 + 60 + 1 and lines[-1] == "... 10 more rows" and "…" in lines[2]
