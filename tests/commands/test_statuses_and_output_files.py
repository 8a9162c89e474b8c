"""What scripts rely on: statuses, errors as JSON, the version, and rows written to files."""

from __future__ import annotations

import json
import pickle
import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss

REPOSITORY = Path(ss.__file__).resolve().parent


@pytest.fixture
def lake(tmp_path: Path) -> str:
    root = tmp_path / "lake"
    root.mkdir()
    for number in range(3):
        rows = {"k": range(10 * number, 10 * number + 10), "s": [f"s{i}" for i in range(10)], "x": [0.5, None] * 5}
        pq.write_table(pa.table(rows), root / f"{number}.parquet")
    ss.create(root).close()
    return str(root)


def _error(err: str) -> dict:
    error = json.loads(err)["error"]
    assert not any(name.startswith("_") for name in error)
    return error


def test_the_version_is_that_of_the_distribution(say) -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert say("--version") == (0, f"skipstone {settings['project']['version']}\n", "")


def test_the_help_names_every_status(say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    status, out, _ = say("--help")
    text = " ".join(out.split())
    assert status == 0
    for part in ("0 done", "1 an error", "2 invalid arguments", "3 verify", "4 a conflict", "130 interr"):
        assert part in text, part


def test_a_conflict_has_a_status_of_its_own_and_names_its_files(
    say, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conflict(table: ss.Table, n: int) -> int:
        raise ss.CommitConflictError("another writer was first", paths=["0.parquet"])

    monkeypatch.setattr(ss.Table, "rollback", conflict)
    status, out, err = say("rollback", lake, "--json")
    assert (status, out, _error(err)["type"], _error(err)["paths"]) == (4, "", "CommitConflictError", ["0.parquet"])


def test_warnings_for_machines_are_lines_of_json(say, lake: str) -> None:
    with ss.open(lake) as table:
        table.create_index("s", kind="bloom")
        (run,) = next(index.runs for index in table.handle.instant.indexes if index.kind == "bloom")
    path = Path(lake, ".skipstone", run.path)
    path.write_bytes(path.read_bytes()[:-10])
    status, out, err = say("scan", lake, "--where", "s = 's3'", "--columns", "k", "--json")
    assert (status, json.loads(out)) == (0, [{"k": 3}, {"k": 13}, {"k": 23}])
    assert err and ".py:" not in err and all(list(json.loads(line)) == ["warning"] for line in err.splitlines())


def test_an_interrupted_command_ends_with_130(say, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(table: ss.Table, deep: bool) -> None:
        if table.version == 1:
            table.create_index("s", kind="bloom")
        raise KeyboardInterrupt

    monkeypatch.setattr(ss.Table, "verify", interrupted)
    status, out, err = say("verify", lake)
    assert (status, out) == (130, "")
    assert err.startswith("interrupted: what was committed after version 1 is kept")
    status, out, err = say("verify", lake, "--json")
    assert (status, out, _error(err)["type"]) == (130, "", "Interrupted")


def test_rows_are_written_to_files_whole(say, lake: str, tmp_path: Path) -> None:
    where, expected = "k BETWEEN 5 AND 24", ss.open(lake).scan("k BETWEEN 5 AND 24").to_table()
    path = tmp_path / "rows.parquet"
    status, out, err = say("scan", lake, "--where", where, "-o", str(path), "--json")
    summary = {"path": str(path), "rows": 20, "size_bytes": path.stat().st_size}
    assert (status, json.loads(out), err) == (0, summary, "")
    assert pq.read_table(path).sort_by("k") == expected.sort_by("k")
    status, out, _ = say("scan", lake, "--where", where, "--limit", "2", "--columns", "k", "-o", str(path))
    assert status == 0 and out.startswith(f"{path}: 2 rows, ")
    assert pq.read_table(path) == ss.open(lake).scan(where, ["k"], 2).to_table()
    assert [file.name for file in tmp_path.iterdir() if "tmp" in file.name] == []


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(say, lake: str, tmp_path: Path) -> None:
    target = tmp_path / "rows.parquet"
    target.write_text("before")
    Path(lake, "1.parquet").unlink()
    status, out, err = say("scan", lake, "-o", str(target))
    assert (status, out) == (1, "") and "1.parquet" in err
    assert target.read_text() == "before" and [p.name for p in tmp_path.iterdir() if "tmp" in p.name] == []


def test_scan_follows_the_directory_first(say, lake: str) -> None:
    pq.write_table(pa.table({"k": [77], "s": ["new"], "x": [1.0]}), Path(lake) / "3.parquet")
    assert json.loads(say("scan", lake, "--where", "k = 77", "--count", "--json")[1]) == {"count": 0}
    assert json.loads(say("scan", lake, "--where", "k = 77", "--count", "--sync", "--json")[1]) == {"count": 1}
    assert ss.open(lake).version == 2
    Path(lake, "4.parquet").write_bytes(b"PAR1")
    status, out, err = say("scan", lake, "--where", "k = 77", "--count", "--sync")
    assert (status, out) == (5, "1\n") and "1 file is quarantined" in err and "4.parquet" in err
    assert say("scan", lake, "--where", "k = 77", "--count", "--version", "2")[0] == 0  # the file was added later
    assert say("scan", lake, "--where", "k = 77", "-o", str(Path(lake).parent / "rows.parquet"))[0] == 5


def test_many_columns_and_long_values_fit_a_terminal(say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    columns = {"id": range(5), "text": ["long " * 40] * 5, **{f"c{i:02d}": [i] * 5 for i in range(40)}}
    with ss.create(tmp_path / "wide", schema=pa.table(columns).schema) as table, table.transaction() as tx:
        tx.write(pa.table(columns))
    status, out, _ = say("scan", str(tmp_path / "wide"))
    assert status == 0 and all(len(line) <= 80 for line in out.splitlines())
    names = [line.split()[0] for line in out.splitlines()[2:] if not line.startswith(" ")]
    assert names == [*columns, "the"] and "the first 1 row: " in out, "each column on a line of its own"
    _, out, _ = say("scan", str(tmp_path / "wide"), "--limit", "3")
    assert out.count("c39") == 3 and "the first" not in out
    monkeypatch.delenv("COLUMNS")
    status, out, _ = say("scan", str(tmp_path / "wide"))
    assert out.splitlines()[0].split() == list(columns) and "long " * 40 in out, "a pipe gets everything"


def test_without_an_index_on_request(say, tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [1, 2]}), tmp_path / "a.parquet")
    status, out, err = say("scan", str(tmp_path), "--where", "k = 2", "--count")
    assert (status, out) == (1, "") and "create one with `skipstone create`, or pass its folder as --index-path" in err
    status, out, err = say("scan", str(tmp_path), "--where", "k = 2", "--count", "--fallback", "list")
    assert (status, out) == (0, "1\n") and all(
        part in err for part in ("the footers of 1 files were read", "`skipstone create` creates an index")
    )
    status, out, err = say("ls", str(tmp_path), "--files", "--fallback", "list", "--json")
    assert status == 0 and [row["path"] for row in json.loads(out)] == ["a.parquet"]
    assert not (tmp_path / ".skipstone").exists()


def test_a_hint_is_worded_by_each_face(say, lake: str) -> None:
    with pytest.raises(ss.InvalidArgumentError, match=r"no bloom index; create one with create_index\(\)$") as refused:
        ss.open(lake).refresh_index("k", kind="bloom")
    assert refused.value.hint == "create one with create_index()"
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    status, out, err = say("index", "refresh", lake, "k", "--kind", "bloom", "--json")
    assert (status, out) == (1, "")
    assert _error(err)["hint"] == "create one with `skipstone index add`" and _error(err)["message"].endswith("add`")
    with ss.open(lake) as table:
        for name in ("0.parquet", "1.parquet", "2.parquet"):
            Path(lake, name).unlink()
        with pytest.raises(ss.NotReadableError, match=r"; sync\(\) the table and scan again$"):
            table.scan().to_table()
    assert "; `skipstone sync` the table and scan again" in say("scan", lake)[2]
    with pytest.raises(ss.NotATableError, match=r"to create an empty table, pass schema=$"):
        ss.create(f"{lake}/nothing")
    assert say("create", f"{lake}/nothing")[2] == f"error: {lake}/nothing: no such directory\n"
