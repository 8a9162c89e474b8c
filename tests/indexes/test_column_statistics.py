"""Statistics of columns as indexes of their own: added, refreshed and dropped while others commit."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
import skipstone as ss
from lake_strategies import commit_rows, declare, file_row, kept_paths, live_paths, make_file, stats_of
from stats_lakes import check_answers, file_columns, index_row, runs_of, stats_lake, stored_files

# -- what is gained, and what it costs --------------------------------------------------------------------------------


def test_a_column_added_to_thousands_of_files_rewrites_none_of_the_others(tmp_path: Path) -> None:
    schema = pa.schema([(name, pa.int64()) for name in ("a", "b", "c")])
    table = ss.create(tmp_path, schema=schema, columns=["a"])
    for start in (0, 3000, 5500):
        declare(table, *(file_row(f"{n}", **stats_of(a=(n, n, 0))) for n in range(start, start + 3000 - start // 6)))
    before, manifest, runs = stored_files(tmp_path), table.handle.instant.manifest, runs_of(table, "a")
    table.create_index("b", kind="stats")
    assert table.handle.instant.manifest == manifest and runs_of(table, "a") == runs
    after = stored_files(tmp_path)
    assert before.items() <= after.items()
    added = {path: size for path, size in after.items() if path not in before}
    assert sum(added.values()) < 100_000 and len(added) <= 4  # entries, aggregates, fine statistics, the instant
    assert kept_paths(table, "a = 7000") == ["7000"] and len(kept_paths(table, "b = 7000")) == len(live_paths(table))
    declare(table, file_row("late", **stats_of(a=(1, 5, 0), b=(1, 5, 0))))
    assert "late" not in kept_paths(table, "b = 6") and kept_paths(table, "b = 6 AND a = 3000") == ["3000"]
    runs = runs_of(table, "a")
    table.drop_index("b", kind="stats")
    assert runs_of(table, "a") == runs


# -- dropped, made again, seen in other versions ----------------------------------------------------------------------


def test_indexes_are_listed_by_name_columns_coverage_and_size(tmp_path: Path) -> None:
    table = stats_lake(tmp_path)
    table.create_index(["y", "s"], kind="stats", shard_bytes=5000)
    table.create_index("y", kind="bloom")
    rows = table.indexes().to_pylist()
    assert [(r["name"], r["columns"], r["kind"]) for r in rows] == [
        ("stats", ["x"], "stats"),
        ("stats(y, s)", ["y", "s"], "stats"),
        ("bloom(y)", ["y"], "bloom"),
    ]
    assert {r["files_covered"] for r in rows} == {r["files_total"] for r in rows} == {4}
    assert json.loads(rows[1]["options"]) == {"shard_bytes": 5000, "maintain": "commit"}
    for row, index in zip(rows, table.handle.instant.indexes, strict=True):
        on_disk = sum((tmp_path / ".skipstone" / run.path).stat().st_size for run in index.runs)
        assert row["size_bytes"] == on_disk > 0
    table.drop_index(["y", "s"], kind="stats")
    table.create_index(["y", "s"], kind="stats", shard_bytes="small")
    assert json.loads(table.indexes().column("options")[2].as_py())["shard_bytes"] == 8 << 20


# -- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["x", "y"])
def test_a_missing_run_of_one_index_leaves_the_columns_of_the_other(tmp_path: Path, column: str) -> None:
    stats_lake(tmp_path).create_index("y", kind="stats")
    value = {"x": "x = 21", "y": "y = 978"}
    other = "y" if column == "x" else "x"
    paths = [tmp_path / ".skipstone" / path for path in runs_of(ss.open(tmp_path), column)]
    for path in paths:
        path.unlink()
    found = ss.open(tmp_path)
    with pytest.warns(UserWarning, match="left out"):
        assert kept_paths(found, value[column]) == live_paths(found)
    assert kept_paths(found, f"{value[other]} AND {value[column]}") == ["2.parquet"]
    assert kept_paths(found, f"{value[other]} OR {value[column]}") == live_paths(found)
    with pytest.raises(ss.SkipstoneError, match=r"\.sbf"):
        kept_paths(ss.open(tmp_path, strict=True), value[column])


def test_columns_that_cannot_have_statistics(tmp_path: Path) -> None:
    make_file(tmp_path, "p=1/f.parquet", {"x": [1], "y": [1], "many": [[1, 2]], "s": [{"t": 1}]})
    table = ss.create(tmp_path, columns=["x"])
    for name, error in {"none": "no column", "p": "partition column", "many": "list column", "s": "no column"}.items():
        with pytest.raises(ss.SchemaError, match=error):
            table.create_index(name, kind="stats")
    with pytest.raises(ss.SchemaError, match="no column"):
        table.create_index(["y", "none"], kind="stats")
    for columns in ("x", ["y", "x"]):
        with pytest.raises(ss.InvalidArgumentError, match="'x' has a stats index already"):
            table.create_index(columns, kind="stats")
    for verb in (table.refresh_index, table.drop_index):
        with pytest.raises(ss.InvalidArgumentError, match="'y' has no stats index"):
            verb("y", kind="stats")
    for options in (*({"shard_bytes": size} for size in (0, True, 1.5, "tiny")), {"maintain": "never"}):
        with pytest.raises(ss.InvalidArgumentError):
            table.create_index("y", kind="stats", **options)
    for columns in ([], 3, [3]):
        with pytest.raises(ss.InvalidArgumentError):
            table.create_index(columns, kind="stats")
    assert table.version == 1
    table.create_index(["s.t", "y", "y"], kind="stats")
    assert kept_paths(table, "s.t = 2") == kept_paths(table, "y = 2") == []


def test_files_that_cannot_be_read_are_holes_until_they_can(tmp_path: Path) -> None:
    table = stats_lake(tmp_path)
    whole, times = (tmp_path / "2.parquet").read_bytes(), os.stat(tmp_path / "2.parquet")
    (tmp_path / "2.parquet").write_bytes(b"PAR1 no more")
    with pytest.warns(UserWarning, match=r"2\.parquet.*overwritten"):
        table.create_index("y", kind="stats")
    assert kept_paths(table, "y = 5000") == ["2.parquet"] and index_row(table, "y")["files_covered"] == 3
    assert kept_paths(table, "y = 5000 AND x = 1") == []
    version, stored = table.version, stored_files(tmp_path)
    with pytest.warns(UserWarning, match=r"2\.parquet"):
        table.refresh_index("y", kind="stats")
    assert table.version == version and stored_files(tmp_path) == stored  # nothing was gained
    (late,) = commit_rows(table, file_columns(70))
    assert kept_paths(table, "y = 299") == ["2.parquet", late]
    (tmp_path / "2.parquet").write_bytes(whole)
    os.utime(tmp_path / "2.parquet", ns=(times.st_atime_ns, times.st_mtime_ns))
    check_answers(table, tmp_path)
    table.refresh_index("y", kind="stats")
    assert table.version == version + 2 and kept_paths(table, "y = 5000") == []
    assert kept_paths(table, "y = 978") == ["2.parquet"] and index_row(table, "y")["files_covered"] == 5
    check_answers(ss.open(tmp_path), tmp_path)


def test_a_filter_over_files_that_cannot_be_read_is_not_refreshed_for_nothing(tmp_path: Path) -> None:
    table = stats_lake(tmp_path)
    (tmp_path / "2.parquet").unlink()
    with pytest.warns(UserWarning, match=r"2\.parquet"):
        version = table.create_index("y", kind="bloom")
    with pytest.warns(UserWarning, match=r"2\.parquet"):
        assert table.refresh_index("y", kind="bloom") == version


def test_files_that_were_only_declared(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    table = ss.create(tmp_path, schema=schema, columns=["a"])
    size = (tmp_path / make_file(tmp_path, "real", {"a": [1, 2], "b": [1, 2]})).stat().st_size
    odd = (tmp_path / make_file(tmp_path, "odd", {"a": [1, 2], "b": ["1", "2"]})).stat().st_size
    declared = stats_of(a=(1, 5, 0), b=(1, 5, 0))
    declare(
        table,
        file_row("absent", **declared),
        {"path": "real", "size_bytes": size, "row_count": 2, **declared},
        {"path": "odd", "size_bytes": odd, "row_count": 2, **declared},
    )
    table.create_index("b", kind="stats")
    # Statistics of b that were declared before the index are not kept; the footer of a file has them, if of that type.
    assert kept_paths(table, "b = 9") == ["absent", "odd"]
    assert kept_paths(table, "b = 2") == ["absent", "odd", "real"]
    declare(table, file_row("later", **declared), file_row("unknown"))
    assert kept_paths(table, "b = 9") == ["absent", "odd", "unknown"]
    assert kept_paths(table, "b = 9 AND a = 9") == ["unknown"]
    assert index_row(table, "b")["files_covered"] == 5
