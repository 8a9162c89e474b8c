"""The command line: every verb on a small lake, for people and for machines, and errors that say what to do."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import declare, file_row
from library_versions import needs
from skipstone.commands.app import main

SCRIPT = Path(sys.executable).with_name("skipstone")
ROWS_A_FILE = 40
BAD_AGES = ("", "1", "h", "-1h", "1 week")


def _rows(month: int) -> pa.Table:
    return pa.table(
        {
            "id": [f"{month}-{i:03d}" for i in range(ROWS_A_FILE)],
            "k": [100 * month + i for i in range(ROWS_A_FILE)],
            "x": [math.nan if i % 10 == 0 else (None if i % 10 == 1 else i / 4) for i in range(ROWS_A_FILE)],
            "raw": [bytes([month, i]) for i in range(ROWS_A_FILE)],
            "tags": [[f"t{i}"] if i % 2 else None for i in range(ROWS_A_FILE)],
        }
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Three months of one file, four row groups each; nothing indexed."""
    for month in (1, 2, 3):
        folder = tmp_path / "lake" / f"month={month}"
        folder.mkdir(parents=True)
        pq.write_table(_rows(month), folder / "a.parquet", row_group_size=10)
    return tmp_path / "lake"


@pytest.fixture
def lake(files: Path) -> str:
    """The same, indexed."""
    with ss.create(files) as table:
        table.create_index("id", kind="bloom")
    return str(files)


def test_create_index_scan(say, files: Path) -> None:
    lake = str(files)
    status, out, _ = say("create", lake)
    assert status == 0
    assert "indexed 3 files in 3 partitions: 120 rows" in out
    status, out, _ = say("index", "add", lake, "k", "--kind", "secondary", "--include", "id", "--include", "x")
    assert status == 0 and 'include ["id", "x"]' in out
    assert say("index", "drop", lake, "k", "--kind", "secondary")[0] == 0
    status, out, _ = say("index", "add", lake, "id", "k", "--fpp", "0.001")
    assert status == 0
    assert "bloom(id)" in out and "bloom(k)" in out and "fpp 0.001" in out
    status, out, _ = say("scan", lake, "--where", "id = '2-007'", "--columns", "k,month")
    assert (status, out.split()) == (0, ["k", "month", *[w for w in out.split() if "─" in w], "207", "2"])


def test_create_without_hive_columns_elsewhere(say_json, files: Path, tmp_path: Path) -> None:
    lake, index = str(files), str(tmp_path / "index")
    output = say_json("create", lake, "--partitioning", "none", "--columns", "id,k", "--index-path", index)
    assert (output["files"], output["rows"], output["partitions"], output["version"]) == (3, 120, 1, 1)
    assert output["index"] == index and not (files / ".skipstone").exists()
    with ss.open(lake, index_path=index) as table:
        assert "month" not in table.schema.names
        assert table.handle.instant.stats_paths() == ("id", "k")
    assert say_json("scan", lake, "--index-path", index, "--count") == {"count": 120}


def test_sync_follows_the_directory(say, say_json, files: Path) -> None:
    lake = str(files)
    say("create", lake)
    status, out, _ = say("sync", lake)
    assert (status, out.strip()) == (0, "version 1: nothing new")
    pq.write_table(_rows(3), files / "month=3" / "b.parquet")
    (files / "month=1" / "a.parquet").unlink()
    status, out, _ = say("sync", lake)
    assert (status, out.strip()) == (0, "version 2: 1 added, 1 removed")
    nothing = {"added": [], "removed": [], "quarantined": {}, "new_columns": []}
    assert say_json("sync", lake) == {"changed": False, "version": 2, **nothing}
    pq.write_table(_rows(3).append_column("z", pa.array(range(ROWS_A_FILE))), files / "month=3" / "c.parquet")
    (files / "month=3" / "half.parquet").write_bytes(b"PAR1")
    status, out, err = say("sync", lake, "--new-columns", "report")
    assert out.strip() == "version 3: 1 added, 1 quarantined; new columns z"
    assert status == 5
    assert "1 file quarantined" in err and "month=3/half.parquet: not a whole Parquet file" in err
    status, out, _ = say("sync", lake, "--json")
    made = json.loads(out)
    assert (status, made["new_columns"], list(made["quarantined"])) == (5, ["z"], ["month=3/half.parquet"])
    assert (made["added"], made["removed"]) == ([], [])


def test_index_list_drop_refresh(say, say_json, lake: str) -> None:
    rows = say_json("index", "list", lake)
    assert [(r["name"], r["files_covered"], r["files_total"]) for r in rows] == [("stats", 3, 3), ("bloom(id)", 3, 3)]
    assert rows[1]["options"]["fpp"] == 0.001
    with ss.open(lake) as table:
        table.create_index("k", kind="bloom", maintain="refresh")
        with table.transaction() as tx:
            tx.write(_rows(4).append_column("month", pa.array([4] * ROWS_A_FILE, pa.int32())))
    covered = {r["name"]: r["files_covered"] for r in say_json("index", "list", lake)}
    assert covered["bloom(k)"] == 3
    covered = {r["name"]: r["files_covered"] for r in say_json("index", "refresh", lake)}
    assert covered["bloom(k)"] == covered["bloom(id)"] == 4
    assert [r["name"] for r in say_json("index", "drop", lake, "id", "k")] == ["stats"]
    rows = say_json("index", "add", lake, "k", "--fpp", "0.02")
    assert rows[1]["options"]["fpp"] == 0.02
    assert "fpp 0.02" in " ".join(say("index", "list", lake)[1].split())


def test_statistics_are_added_refreshed_and_dropped(say, say_json, files: Path) -> None:
    lake = str(files)
    say("create", lake, "--columns", "id")
    rows = say_json("index", "add", lake, "k", "x", "--kind", "stats", "--maintain", "refresh")
    assert [(r["name"], r["options"]["maintain"]) for r in rows][1:] == [("stats(k, x)", "refresh")]
    status, out, _ = say("index", "list", lake)
    assert status == 0 and "maintain refresh" in out and "shard_bytes" in out
    with ss.open(lake) as table, table.transaction() as tx:
        tx.write(_rows(4).append_column("month", pa.array([4] * ROWS_A_FILE, pa.int32())))
    assert [r["files_covered"] for r in say_json("index", "list", lake)] == [4, 3]
    assert [r["files_covered"] for r in say_json("index", "refresh", lake, "--kind", "bloom")] == [4, 3]
    assert [r["files_covered"] for r in say_json("index", "refresh", lake)] == [4, 4]
    status, _, err = say("index", "refresh", lake, "k", "raw")
    assert status == 1 and "bloom" in err
    assert [r["name"] for r in say_json("index", "drop", lake, "x", "--kind", "stats")] == ["stats", "stats(k)"]


def test_alter(say, say_json, lake: str) -> None:
    added = ["--add", "note=string", "--add", "at=timestamp[us, tz=Europe/Oslo]", "--add", "amount=decimal(12,2)"]
    output = say_json("alter", lake, "--rename", "k=number", "--drop", "tags", *added)
    kinds = {field["name"]: field["type"] for field in output["schema"]}
    assert output["changed"] and output["version"] == 3
    assert list(kinds) == ["id", "number", "x", "raw", "note", "at", "amount", "month"]
    assert (kinds["at"], kinds["amount"]) == ("timestamp[us, tz=Europe/Oslo]", "decimal128(12, 2)")
    status, out, _ = say("scan", lake, "--where", "number = 207 AND note IS NULL", "--count")
    assert (status, out) == (0, "1\n")
    status, out, _ = say("alter", lake)
    assert status == 0 and "nothing to change: still version 3" in out
    status, out, _ = say("alter", lake, "--rename", "number=k")
    assert status == 0 and out.splitlines()[1] == "k  int64" and out.splitlines()[-1] == "version 4"


def test_a_slice_is_read_without_its_logs(say, say_json, tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "base.parquet")
    size_bytes = (tmp_path / "base.parquet").stat().st_size
    with ss.create(tmp_path, files=[], schema=pa.schema([("a", pa.int64())])) as table, table.transaction() as tx:
        kinds = {"kind": ["base", "log"], "file_group": ["g"] * 2, "slice_instant": ["1"] * 2}
        names = {"path": ["base.parquet", "log"], "size_bytes": [size_bytes, 1], "row_count": [2, 1]}
        tx.add_files(pa.table({**names, **kinds}))
    status, _, err = say("scan", str(tmp_path), "--count")
    assert status == 1 and "logs" in err
    assert say_json("scan", str(tmp_path), "--count", "--mode", "read_optimized") == {"count": 2}
    output = say_json("explain", str(tmp_path), "--mode", "read_optimized")
    assert list(output["row_groups"]) == ["base.parquet"]


def test_slices(say, say_json, tmp_path: Path) -> None:
    files = [("b1", "1", "base"), ("l1", "1", "log"), ("b2", "2", "base"), ("l3", "3", "log")]
    table = ss.create(tmp_path, schema=pa.schema([("a", pa.int64())]))
    declare(table, *(file_row(p, slice_instant=i, kind=k, file_group="g") for p, i, k in files))
    (row,) = say_json("slices", str(tmp_path))
    assert (row["base"], row["logs"], row["log_bytes"]) == ("b2", ["l3"], 1000)
    _, out, _ = say("slices", str(tmp_path), "--all")
    shown = [(words[2], *words[-2:]) for words in map(str.split, out.splitlines()[2:])]
    assert shown == [("b1", "False", "False"), ("b2", "True", "False"), ("-", "True", "True")]


def test_verify(say, say_json, lake: str) -> None:
    assert say_json("verify", lake, "--deep") == []
    status, out, _ = say("verify", lake)
    assert (status, out.split(":")[0]) == (0, "sound")
    os.remove(os.path.join(lake, "month=2", "a.parquet"))
    status, out, _ = say("verify", lake, "--json")
    assert status == 3
    assert [(f["kind"], f["path"]) for f in json.loads(out)] == [("missing", "month=2/a.parquet")]


def _expected(month: int, i: int) -> dict[str, object]:
    return {
        "id": f"{month}-{i:03d}",
        "k": 100 * month + i,
        "x": "NaN" if i % 10 == 0 else None if i % 10 == 1 else i / 4,
        "raw": bytes([month, i]).hex(),
        "tags": [f"t{i}"] if i % 2 else None,
        "month": month,
    }


def test_scan_json_holds_every_kind_of_value(say_json, lake: str) -> None:
    rows = say_json("scan", lake)
    assert sorted(rows, key=lambda row: row["k"]) == [_expected(m, i) for m in (1, 2, 3) for i in range(ROWS_A_FILE)]
    assert say_json("scan", lake, "--where", "k < 0") == []
    assert len(say_json("scan", lake, "--limit", "7")) == 7


def test_scan_table_shows_the_first_rows(say, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = say("scan", lake, "--columns", "k")
    assert len(out.splitlines()) == 2 + 20 + 1
    assert "the first 20 rows" in out
    _, out, _ = say("scan", lake, "--columns", "k", "--limit", "30")
    assert len(out.splitlines()) == 2 + 30
    _, out, _ = say("scan", lake, "--where", "k < 0")
    assert out == "no row matches\n"


def test_scan_count_and_versions(say, say_json, lake: str) -> None:
    with ss.open(lake) as table, table.transaction() as tx:
        tx.remove(["month=1/a.parquet"])
    assert say_json("scan", lake, "--count") == {"count": 80}
    assert say_json("scan", lake, "--count", "--version", "2") == {"count": 120}
    assert len(say_json("ls", lake, "--version", "1")) == 3
    assert say("scan", lake, "--count", "--where", "k = 205")[:2] == (0, "1\n")


@needs("duckdb", 2, what="sql")
def test_sql(say, say_json, lake: str) -> None:
    query = "SELECT month, count(*) AS n FROM self WHERE k < 110 GROUP BY month ORDER BY month"
    status, out, _ = say("sql", lake, query)
    assert (status, out.split()[:2]) == (0, ["month", "n"])
    assert say_json("sql", lake, query) == [{"month": 1, "n": 10}]
    output = say_json("sql", lake, query, "--explain")["explain"]
    assert output[0] == "self: 1 of 3 files, read by DuckDB"
    status, out, err = say("sql", lake, "SELECT nothing FROM self")
    assert (status, out) == (1, "") and "nothing" in err


def test_explain(say, say_json, lake: str) -> None:
    _, out, _ = say("explain", lake, "--where", "id = '2-007'")
    assert out.splitlines()[1] == "where \"id\" = '2-007'"
    assert "bloom(id)" in out
    output = say_json("explain", lake, "--where", "id = '2-007'")
    assert output["row_groups"] == {"month=2/a.parquet": [0]}
    with ss.open(lake) as table:
        plan = table.scan("id = '2-007'")
        plan.explain()
    assert [(s["name"], s["came_in"], s["went_out"]) for s in output["steps"]] == [
        (s.name, s.came_in, s.went_out) for s in plan.steps
    ]


def test_explain_file(say, say_json, lake: str) -> None:
    for name in ("month=2/a.parquet", os.path.join(lake, "month=2", "a.parquet")):
        status, out, _ = say("explain", lake, "--where", "k = 207", "--file", name)
        assert status == 0
        assert out.startswith("month=2/a.parquet: kept")
    output = say_json("explain", lake, "--where", "k = 207", "--file", "month=1/a.parquet")
    assert "skipped" in output["verdict"] and output["reasons"] == []
    output = say_json("explain", lake, "--where", "k = 207 OR id = 'x'", "--file", "month=2/a.parquet")
    assert [(r["leaf"], r["code"], r["lower"], r["upper"]) for r in output["reasons"]] == [
        ('"k" = 207', "range_overlaps", "200", "239"),
        ("\"id\" = 'x'", "never_true", "2-000", "2-039"),
    ]


def test_explain_reports_why_files_are_kept(say, say_json, lake: str) -> None:
    _, out, _ = say("explain", lake, "--where", "k >= 207")
    assert out.splitlines()[-3:] == [
        "why files are kept",
        '  1  "k" >= 207: range overlaps',
        '  1  "k" >= 207: true for every row',
    ]
    assert "why files are kept" not in say("explain", lake)[1]
    output = say_json("explain", lake, "--where", "x > 100")
    assert output["why_kept"] == [{"code": "nan_possible", "leaf": '"x" > 100.0e0', "files": 3}]


def test_layout(say, say_json, lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "44")
    status, out, err = say("layout", lake, "k")
    assert (status, err) == (0, "")
    assert [line.rstrip() for line in out.splitlines()[1:]] == [
        "files            3 files with bounds",
        "values           100 to 339",
        "a value is in    mean 1.0, median 1, 99th percentile 1, at most 1 file",
        "a look-up reads  33.3% of the files, by their bounds",
    ]
    output = say_json("layout", lake, "x")
    assert (output["column"], output["type"], output["files"], output["depth_max"]) == ("x", "double", 3, 3)
    assert (output["lower"], output["upper"], output["share_read"]) == (0.5, 9.75, 1.0)
    assert say_json("layout", lake, "raw")["lower"] == "0100"


@pytest.mark.parametrize(
    ("kind", "arguments", "part"),
    [
        ("NotATableError", ["ls", "{tmp}/nothing"], "no Skipstone index here"),
        ("InvalidArgumentError", ["create", "{lake}"], "already indexed"),
        ("NotATableError", ["create", "{tmp}/nothing"], "no such directory"),
        ("PredicateError", ["scan", "{lake}", "--where", "k >"], "not a predicate"),
        ("PredicateError", ["scan", "{lake}", "--where", "nope = 1"], "nope"),
        ("SchemaError", ["scan", "{lake}", "--columns", "nope"], "no column 'nope'"),
        ("NotATableError", ["scan", "{lake}", "--version", "99"], "99"),
        ("InvalidArgumentError", ["scan", "{lake}", "--sync", "--version", "1"], "version"),
        ("StorageError", ["scan", "{lake}", "-o", "{lake}/month=1/a.parquet/rows.parquet"], "a file is in its place"),
        ("UsageError", ["scan", "{lake}", "-o", "{lake}.csv"], "ends in .parquet"),
        ("UsageError", ["scan", "{lake}", "-o", "{lake}.parquet", "--count"], "--count"),
        ("UsageError", ["scan", "{lake}", "--limit", "x"], "--limit"),
        ("UsageError", ["scan"], "PATH"),
        ("UsageError", ["bogus"], "bogus"),
        ("UsageError", ["ls", "{lake}", "--storage-option", "region"], "NAME=VALUE"),
        ("InvalidArgumentError", ["ls", "{lake}", "--partition", "month=9"], "month=9"),
        ("SchemaError", ["index", "add", "{lake}", "nope"], "nope"),
        ("InvalidArgumentError", ["index", "add", "{lake}", "k", "--fpp", "2"], "fpp is how often"),
        ("InvalidArgumentError", ["index", "drop", "{lake}", "k"], "k"),
        ("UsageError", ["alter", "{lake}", "--rename", "k"], "--rename has two sides"),
        ("UsageError", ["alter", "{lake}", "--add", "a=int8", "--add", "a=int16"], "twice"),
        ("UsageError", ["alter", "{lake}", "--widen", "k=zz"], "'zz' is no type"),
        ("SchemaError", ["alter", "{lake}", "--drop", "month"], "partition column"),
        ("InvalidArgumentError", ["explain", "{lake}", "--file", "nope"], "nope"),
        ("SchemaError", ["layout", "{lake}", "nope"], "no column 'nope'"),
        ("SchemaError", ["layout", "{lake}", "tags"], "has no order"),
        ("CorruptionError", ["inspect", "{lake}/month=1/a.parquet"], "sorted-block file"),
        ("NotATableError", ["inspect", "{tmp}/nothing"], "no such file"),
        ("InvalidArgumentError", ["rollback", "{lake}"], "version 2 (index) cannot be rolled back"),
        ("InvalidArgumentError", ["rollback", "{lake}", "9"], "there are no 9 versions to roll back above version 1"),
        ("InvalidArgumentError", ["restore", "{lake}"], "restore needs a version or a savepoint"),
        ("InvalidArgumentError", ["restore", "{lake}", "--version", "9"], "no version 9 to restore"),
        ("InvalidArgumentError", ["restore", "{lake}", "--savepoint", "x"], "no savepoint 'x'; there are: none"),
        ("UsageError", ["savepoint", "{lake}"], "pass the NAME"),
        ("UsageError", ["savepoint", "{lake}", "x", "--list"], "pass the NAME"),
        ("UsageError", ["savepoint", "{lake}", "--drop"], "pass the NAME"),
        ("InvalidArgumentError", ["savepoint", "{lake}", "x", "--drop"], "no savepoint 'x'"),
        ("InvalidArgumentError", ["savepoint", "{lake}", " "], "a savepoint's name"),
        *(("UsageError", ["clean", "{lake}", f"--min-age={age}"], "as 90s, 30m, 1h or 7d") for age in BAD_AGES),
    ],
)
def test_errors(say, lake: str, tmp_path: Path, kind: str, arguments: list[str], part: str) -> None:
    """A sentence for people, and an object for machines."""
    words, status = [word.format(tmp=tmp_path, lake=lake) for word in arguments], 2 if kind == "UsageError" else 1
    got, out, err = say(*words)
    assert (got, out) == (status, "") and part in err
    assert err.startswith("error: ") and "Traceback" not in err
    got, out, err = say(*words, "--json")
    error = json.loads(err)["error"]
    assert (got, out, error["type"], error["status"]) == (status, "", kind, status) and part in error["message"]
    assert not any(name.startswith("_") for name in error)
    assert ss.open(lake).version == 2


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(ss.NotATableError):
        main(["ls", str(tmp_path), "--debug"])
    with pytest.raises(ss.NotATableError):
        main(["--debug", "ls", str(tmp_path)])


def test_the_console_script(lake: str) -> None:
    done = subprocess.run(
        [str(SCRIPT), "scan", lake, "--where", "id = '3-001'", "--json"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [_expected(3, 1)]
    done = subprocess.run([str(SCRIPT), "ls", f"{lake}-not"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1


def test_a_closed_pipe_is_no_error(lake: str) -> None:
    command = f"'{SCRIPT}' scan '{lake}' --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.stdout == "[\n"
    assert done.stderr == ""
