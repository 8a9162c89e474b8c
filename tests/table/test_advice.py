"""Advice: forecasts from a sample are true once the index is built, and queries that cannot be read are listed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from lake_strategies import make_file, write_rows
from skipstone.commands.demo import uuids, write_lake
from skipstone.engine.indexes.kind import kind_named

ROWS = 12_000


def _flights() -> pa.Table:
    """Rows like those of the demo's lake: twelve months, random uuids."""
    chance = random.Random(7)
    months = [1 + 12 * i // ROWS for i in range(ROWS)]
    return pa.table(
        {
            "flight_id": uuids(ROWS),
            "year": [2013] * ROWS,
            "month": months,
            "tailnum": [f"N{chance.randrange(2_000):05}" for _ in range(ROWS)],
            "distance": [chance.randrange(3_000) for _ in range(ROWS)],
            "hour": [i % 24 for i in range(ROWS)],
        }
    )


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    return _flights()


def _lake(root: Path, rows: pa.Table) -> str:
    write_lake(rows, str(root / "lake"))
    ss.create(root / "lake").close()
    return str(root / "lake")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory, rows: pa.Table) -> str:
    """A lake that no test changes."""
    return _lake(tmp_path_factory.mktemp("shared"), rows)


@pytest.fixture
def own_lake(tmp_path: Path, rows: pa.Table) -> str:
    return _lake(tmp_path, rows)


def _read(table: ss.Table, queries: list[str]) -> tuple[int, float]:
    """(files, bytes of row groups) that the plans of queries read."""
    sizes = dict(zip(*(table.files().column(name).to_pylist() for name in ("path", "size_bytes")), strict=True))
    files, size = 0, 0.0
    for query in queries:
        groups = table.scan(query).row_groups().column("path").to_pylist()
        files += len(set(groups))
        size += sum(sizes[path] / 4 for path in groups)  # of each file's four
    return files, size


def _kinds(advice) -> list[tuple[str, tuple[str, ...]]]:
    return [(one.kind, one.columns) for one in advice.suggestions]


@pytest.mark.parametrize(
    "row_groups, fpp", [(0, 1e-3), (1, 1e-3), (1_000, 1e-3), (1_001, 1e-4), (100_000, 1e-5), (10**9, 1e-6)]
)
def test_the_suggested_fpp_goes_by_the_number_of_row_groups(row_groups: float, fpp: float) -> None:
    assert kind_named("bloom").advised_options(row_groups)["fpp"] == pytest.approx(fpp)


def test_the_forecast_of_an_index_is_true(own_lake: str, rows: pa.Table) -> None:
    """From a third of the 48 files. The index is then built, and the same queries are planned."""
    table = ss.open(own_lake)
    wanted = rows.column("flight_id").to_pylist()[:: ROWS // 6]
    queries = [f"flight_id = '{one}'" for one in wanted]
    advice = table.advise(queries, sample_files=16)
    assert (advice.files_sampled, advice.files_total, advice.unread) == (16, 48, ())
    best = advice.suggestions[0]
    assert (best.kind, best.columns, best.queries) == ("bloom", ("flight_id",), len(queries))
    assert best.code == "table.create_index('flight_id', kind='bloom', fpp=0.001)"
    assert ("secondary", ("flight_id",)) in _kinds(advice)
    files_now, bytes_now = _read(table, queries)
    assert (best.files_now, best.bytes_now) == (files_now, pytest.approx(bytes_now, rel=0.1))
    before = sum(file.stat().st_size for file in Path(own_lake, ".skipstone").rglob("*") if file.is_file())
    exec(best.code, {"table": table})
    after = sum(file.stat().st_size for file in Path(own_lake, ".skipstone").rglob("*") if file.is_file())
    files, size = _read(table, queries)
    saved = bytes_now - size
    assert saved / 2 <= best.bytes_now - best.bytes_then <= 2 * saved
    assert (files_now - files) / 2 <= best.files_now - best.files_then <= 2 * (files_now - files)
    assert (after - before) / 2 <= best.index_bytes <= 2 * (after - before)
    assert ("bloom", ("flight_id",)) not in _kinds(table.advise(queries, sample_files=4))


def test_advice_changes_no_file(lake: str) -> None:
    before = {file: file.stat().st_mtime_ns for file in Path(lake).rglob("*")}
    ss.open(lake).advise(["tailnum = 'N00001'"], sample_files=2)
    assert {file: file.stat().st_mtime_ns for file in Path(lake).rglob("*")} == before


def test_queries_that_cannot_be_read_are_listed(lake: str) -> None:
    texts = [
        "SELECT f.hour FROM flights f WHERE f.tailnum = 'N00001' AND hour < 12 ORDER BY hour",
        "WHERE tailnum = 'N00001' AND hour < 12",
        "SELECT * FROM flights",
        "SELECT * FROM a JOIN b USING (x) WHERE a.x = 1",
        "SELECT * FROM flights WHERE hour IN (SELECT 1)",
        "DELETE FROM flights WHERE hour = 1",
        "nothing = 1",
        "hour = = 1",
    ]
    advice = ss.open(lake).advise(texts, sample_files=2)
    assert [text for text, _ in advice.unread] == texts[2:]
    assert (advice.queries, advice.distinct) == (2, 1)
    assert all(reason for _, reason in advice.unread)
    for text in texts[2:]:
        assert text in str(advice)


def test_from_a_log_of_scans(say, lake: str, tmp_path: Path, rows: pa.Table) -> None:
    log, other = tmp_path / "queries.jsonl", tmp_path / "other"
    other.mkdir()
    pq.write_table(rows.slice(0, 5), other / "a.parquet")
    ss.create(other).close()
    table = ss.open(lake, scan_log=log)
    for _ in range(3):
        table.scan(ss.col("flight_id") == rows.column("flight_id")[7].as_py()).files()
    ss.open(other, scan_log=log).scan("hour = 3").files()  # of another table
    ss.open(lake, scan_log=ss.ScanLog(log, values=False)).scan("hour = 3").files()
    with open(log, "a") as file:
        file.write("torn {\n")
    before = log.read_bytes()
    advice = table.advise(log=log, sample_files=4)
    assert log.read_bytes() == before  # trial scans are not logged
    assert (advice.queries, advice.distinct, len(advice.unread)) == (3, 1, 2)
    status, output, _ = say("advise", lake, "--from-log", str(log), "--sample-files", "4", "--json")
    assert status == 0
    answer = json.loads(output)
    assert [one["kind"] for one in answer["suggestions"]] == [one.kind for one in advice.suggestions]
    assert answer["suggestions"][0]["code"] == advice.suggestions[0].code


def test_the_command_reads_a_file_of_statements(say, lake: str, tmp_path: Path) -> None:
    file = tmp_path / "q.sql"
    file.write_text("-- ours; really\nSELECT *\nFROM f\nWHERE tailnum = 'a;b';\nhour = 3 ;\n\n;bad = 1;")
    status, output, _ = say("advise", lake, "--queries", str(file), "--sample-files", "2")
    assert status == 0 and "2 queries" in output and "not read: bad = 1" in output
    file.write_text("tailnum = 'x'\nhour = 3\n")
    output = say("advise", lake, "--queries", str(file), "--sample-files", "2", "--json")[1]
    assert json.loads(output)["distinct"] == 2


@pytest.mark.parametrize("arguments", [[], ["--queries", "a", "--from-log", "b"]])
def test_exactly_one_source_of_queries_is_required(say, lake: str, arguments: list[str]) -> None:
    assert say("advise", lake, *arguments)[0] == 2
    with pytest.raises(ss.InvalidArgumentError):
        ss.open(lake).advise()


def test_a_table_without_files_and_queries_that_read_nothing(tmp_path: Path, lake: str) -> None:
    empty = ss.create(tmp_path / "empty", schema=pa.schema([("id", pa.int64())]))
    assert empty.advise(["id = 1"]).suggestions == ()
    assert ss.open(lake).advise(["month = 13"]).suggestions == ()
    assert "nothing that was tried" in str(ss.open(lake).advise([]))


def test_columns_that_were_renamed_and_added(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    for number in range(6):
        rows = {"old": [f"{number}-{i * 7919 % 1000}" for i in range(1000)], "gone by": [1] * 1000}
        make_file(root, f"{number}.parquet", rows, row_group_size=100)
    table = ss.create(root)
    table.alter(rename={"old": "key"}, add={"later": pa.int64()})
    write_rows(table, pa.table({"key": ["a"], "gone by": [2], "later": [3]}))  # one file has the new names
    advice = table.advise([f"key = '{i}-500'" for i in range(3)] + ["later = 3 AND key = 'a'"])
    assert advice.files_sampled == 3  # files with the old names that may contain a key
    best = advice.suggestions[0]
    assert (best.columns, best.bytes_then < best.bytes_now) == (("key",), True)
    assert [("later" in text, "later" in reason) for text, reason in advice.unread] == [(True, True)]


def test_of_a_delta_table(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    path = str(tmp_path / "delta")
    for i in range(4):
        rows = pa.table(
            {
                "id": [f"{i}-{j * 7919 % 1000}" for j in range(1000)],
                "day": ["a"] * 500 + ["b c"] * 500,
                "n": range(1000),
            }
        )
        deltalake.write_deltalake(path, rows, mode="append", partition_by=["day"])
    with ss.create(path) as table:
        advice = table.advise([f"id = '{i}-{600 + i}' AND day = 'b c'" for i in range(4)])
    assert (advice.unread, advice.files_total) == ((), 8)
    assert ("bloom", ("id",)) in _kinds(advice)
