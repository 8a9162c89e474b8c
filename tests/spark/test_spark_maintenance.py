"""`create`, `create_index`, `optimize`, `sync`, `verify` and `clean` by tasks do what the methods of a table do.

The tasks run in this process; test_spark_verbs.py has executors.
"""

from __future__ import annotations

import datetime as dt
import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import skipstone as ss
from example_counts import few_of
from lake_strategies import make_file
from skipstone import spark_adapter as sks
from skipstone.spark_adapter import executors, maintenance
from spark_in_process import run_here

FILES = 12
FOLDERS = 140  # more than the driver lists by itself


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for at in range(FILES):
        texts = [None if i % 9 == 0 else f"v{v}" for i, v in enumerate(draw.integers(0, 3_000, 200))]
        rows = {"k": draw.integers(0, 1 << 40, 200), "s": texts}
        make_file(tmp_path, f"p={at % 3}/{at}.parquet", rows, row_group_size=70)
    ss.create(tmp_path)
    return tmp_path


def _add_file(lake: Path) -> None:
    make_file(lake, "p=0/new.parquet", {"k": [5], "s": ["x"]})


def _row_groups(table: ss.Table, where: object) -> pa.Table:
    return table.scan(where).row_groups().sort_by("path")


def test_many_files_are_indexed_in_parts_with_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_PART_FILES_MIN", 5)
    for at in range(40):
        make_file(tmp_path, f"{at}.parquet", {"k": [at, at * 7]})
    steps: list[tuple[str, int, int | None]] = []
    table = sks.create(None, tmp_path, progress=lambda *step: steps.append(step))
    assert (table.version, table.files().num_rows, steps[-1]) == (1, 40, ("footers, parts", 8, 8))
    tasks = [path.name for path in (tmp_path / ".skipstone" / "tasks").rglob("*.sbf")]
    assert len(tasks) == 8 and not [name for name in tasks if "listing" in name]
    assert table.verify(deep=True) == []
    with pytest.raises(ss.InvalidArgumentError, match="already indexed"):
        sks.create(None, tmp_path)
    (tmp_path / "3.parquet").write_bytes(b"nothing")
    for name in ("3.parquet", "missing.parquet"):
        other = tmp_path.parent / f"{name}-index"
        errors = []
        for create in (lambda *given, **options: sks.create(None, *given, **options), ss.create):
            with pytest.raises((ss.CorruptionError, ss.NotATableError)) as caught:
                create(tmp_path, files=["1.parquet", name], index_path=other)
            errors.append((type(caught.value), str(caught.value)))
        assert errors[0] == errors[1]
        assert not list(other.rglob("*.sbf")), "the files of the other tasks are removed"


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("kind", "columns", "options"),
    [
        ("bloom", ["k"], {"fpp": 0.001}),
        ("secondary", ["k"], {}),
        ("secondary", ["s", "k"], {}),
        ("secondary", ["s"], {"include": ["k"]}),
    ],
)
def test_an_index_of_executors_gives_the_answers_of_one_built_here(
    lake: Path, kind: str, columns: list[str], options: dict
) -> None:
    version = sks.create_index(None, lake, columns, kind, **options)
    table = ss.open(lake)
    index = table.indexes().to_pylist()[-1]
    assert (table.version, index["files_covered"], index["files_total"]) == (version, FILES, FILES)
    there = ss.create(lake, index_path=lake.parent / f"{lake.name}-here")
    there.create_index(columns, kind=kind, **options)
    for row in few_of(there.scan().to_table().to_pylist(), 8):
        value = row[columns[0]]
        where = f"{columns[0]} IS NULL" if value is None else ss.col(columns[0]) == value
        assert _row_groups(table, where) == _row_groups(there, where)
        order = [(name, "ascending") for name in ("k", "s", "p")]
        plans = [each.scan(where, columns=["k", "s", "p"]) for each in (table, there)]
        assert plans[0].to_table().sort_by(order) == plans[1].to_table().sort_by(order)
        if "include" in options:
            assert "answered by index secondary(s), no data file read" in plans[0].explain()
    assert table.scan("k = 12345").files().num_rows == 0
    assert table.verify(deep=True) == []
    table.optimize()
    assert table.verify(deep=True) == []
    copy = shutil.copytree(lake, lake.parent / f"{lake.name}-copy", copy_function=shutil.copyfile)
    assert ss.adopt(copy).kept == FILES


def test_a_refresh_builds_only_what_is_missing(lake: Path) -> None:
    sks.create_index(None, lake, "k", "secondary", maintain="refresh")
    table = ss.open(lake)
    _add_file(lake)
    with table.transaction() as tx:
        tx.add_files(["p=0/new.parquet"])
    before = table.handle.instant.indexes[-1].runs
    version = sks.refresh_index(None, lake, "k", "secondary")
    assert table.refresh().version == version
    assert set(before) <= set(table.handle.instant.indexes[-1].runs)
    assert table.scan("k = 5").count() == 1
    assert sks.refresh_index(None, lake, "k", "secondary") == version, "nothing to cover: no version"


def test_an_overwritten_file_is_not_covered(lake: Path) -> None:
    path = lake / "p=1" / "4.parquet"
    path.write_bytes(path.read_bytes() + b"more")
    sks.create_index(None, lake, "k", "bloom")
    assert ss.open(lake).indexes().to_pylist()[-1]["files_covered"] == FILES - 1


def test_a_build_that_fails_leaves_the_table_as_it_was(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ss.open(lake)
    monkeypatch.setattr(executors, "_PART_BYTES_MIN", 1)
    real = executors._build_part

    def parts_left() -> list[Path]:
        return [path for path in (lake / ".skipstone" / "runs").rglob("*.sbf") if "-p" in path.name]

    for error, kept in ((ss.SchemaError, False), (RuntimeError, True)):

        def dying(*given: Any, error=error) -> object:
            if any(path.endswith("7.parquet") for path in given[-1].column("path").to_pylist()):
                raise error("an executor died")
            return real(*given)

        with monkeypatch.context() as patch:
            patch.setattr(executors, "_build_part", dying)
            with pytest.raises(error, match="an executor died"):
                sks.create_index(None, lake, "k", "secondary")
        assert ss.open(lake).version == table.version
        assert bool(parts_left()) == kept, "results of our own errors are known, and removed immediately"
    table.clean(retain_versions=1, min_age=dt.timedelta(0))
    assert parts_left() == []


@pytest.mark.parametrize("kind", ["secondary", "bloom"])
def test_a_build_in_waves_continues_after_its_driver_died(
    lake: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(executors, "_FIRST_BYTES_PER_CORE", 3 * executors.OPEN_BYTES)
    waves: list[int] = []
    real = executors.map_parts

    def killed(*args, **given):
        waves.append(1)
        if len(waves) == 2:
            raise GeneratorExit  # no clean-up, as after a kill
        return real(*args, **given)

    with monkeypatch.context() as patch:
        patch.setattr(executors, "map_parts", killed)
        with pytest.raises(GeneratorExit):
            sks.create_index(None, lake, "k", kind)
    table = ss.open(lake)
    assert 0 < table.indexes().to_pylist()[-1]["files_covered"] < FILES
    values = table.scan(columns=["k"]).to_table().column("k").to_pylist()[17::200]  # one of each file
    before = [table.scan(ss.col("k") == value).count() for value in values]
    assert len(values) == FILES and min(before) >= 1
    steps: list[tuple[str, int, int | None]] = []
    sks.refresh_index(None, lake, "k", kind, progress=lambda *step: steps.append(step))
    table.refresh()
    assert table.indexes().to_pylist()[-1]["files_covered"] == FILES
    assert [table.scan(ss.col("k") == value).count() for value in values] == before
    assert steps[0][0] == f"{kind}(k), parts" and steps[-1][1] == steps[-1][2]
    assert table.verify(deep=True) == []


def test_statistics_and_optimize(lake: Path) -> None:
    there = ss.create(lake, index_path=lake.parent / f"{lake.name}-here", columns=["k"])
    elsewhere = lake.parent / f"{lake.name}-there"
    table = ss.create(lake, index_path=elsewhere, columns=["k"])
    sks.create_index(None, lake, "s", "stats", index_path=elsewhere)
    there.create_index("s", kind="stats")
    table.refresh()
    for where in ("s < 'v150'", "s < 'v2'", "s IS NULL", "s > 'w'", "p = 1 AND s = 'v17'"):
        assert _row_groups(table, where) == _row_groups(there, where), where
        assert "stats" in table.scan(where).explain()
    assert table.scan().min("s") == there.scan().min("s")
    sks.create_index(None, lake, "k", "bloom", index_path=elsewhere)
    _add_file(lake)
    table.refresh().sync()
    version = sks.optimize(None, lake, index_path=elsewhere)
    assert table.refresh().version == version
    assert all(index["files_covered"] == FILES + 1 for index in table.indexes().to_pylist())
    assert sks.optimize(None, lake, index_path=elsewhere) == version, "nothing to do: no version"
    assert table.scan("k = 5").count() == 1
    assert table.verify(deep=True) == []


@pytest.mark.parametrize(
    ("options", "method"),
    [
        (maintenance.SyncOptions, ss.Table.sync),
        (maintenance.IndexOptions, ss.Table.create_index),
        (maintenance.Reported, ss.Table.refresh_index),
        (maintenance.Reported, ss.Table.optimize),
        (maintenance.CleanOptions, ss.Table.clean),
        (maintenance.CreateOptions, ss.create),
    ],
)
def test_the_options_of_a_verb_are_those_of_the_method(options: type, method: Callable) -> None:
    """By name and type, so that editors show what the method accepts."""
    theirs = inspect.signature(method).parameters.values()
    named = {one.name for one in theirs if one.kind is inspect.Parameter.KEYWORD_ONLY} - {"attach"}
    assert options.__optional_keys__ == named | {"index_path", "storage_options"}


def test_options_of_the_caller_are_not_changed(tmp_path: Path) -> None:
    make_file(tmp_path, "a.parquet", {"k": [1]})
    ss.create(tmp_path, index_path=tmp_path / "index").close()
    options: dict[str, Any] = {"index_path": tmp_path / "index", "refresh": True}
    with executors.opened(SimpleNamespace(_sc=None), tmp_path, options) as (table, rest):  # type: ignore[arg-type]
        assert (table.version, rest) == (1, {"refresh": True})
    assert options == {"index_path": tmp_path / "index", "refresh": True}


@pytest.fixture
def lakes(at_any_place: None, tmp_path: Path) -> tuple[Path, Path]:
    """The same lake twice; since it was indexed many files were added, one changed, one was removed, and one is not
    Parquet."""
    lake = tmp_path / "one"
    for number in range(FOLDERS):
        make_file(lake, f"p={number}/a.parquet", {"k": [number, number + 1], "s": ["a", None]})
    ss.create(lake, files=[f"p={number}/a.parquet" for number in range(0, FOLDERS, 2)])
    ss.open(lake).create_index("k", kind="bloom", fpp=0.01)
    (lake / "p=0" / "a.parquet").unlink()
    make_file(lake, "p=2/a.parquet", {"k": [7], "more": [1.5]})
    (lake / "p=1" / "half.parquet").write_bytes(b"PAR1")
    make_file(lake, "p=3/_hidden/a.parquet", {"k": [5, 6], "s": ["a", None]})
    shutil.copytree(lake, tmp_path / "two", copy_function=shutil.copy2)
    return lake, tmp_path / "two"


def test_a_sync_by_executors_is_that_of_the_table(lakes: tuple[Path, Path]) -> None:
    one, two = lakes
    here = ss.open(two).sync(refresh=True)
    steps = set()
    by_spark = sks.sync(None, one, refresh=True, progress=lambda step, done, total: steps.add(step))
    assert "footers, parts" in steps, "executors had nothing to do"
    for name in ("added", "removed", "quarantined", "new_columns"):
        assert sorted(getattr(by_spark, name)) == sorted(getattr(here, name)), name
    assert int(by_spark) == int(here) and len(here.added) > FOLDERS // 2 and here.quarantined
    a, b = ss.open(one), ss.open(two)
    columns = ["path", "partition", "size_bytes", "row_count"]
    assert a.files().select(columns).sort_by("path") == b.files().select(columns).sort_by("path")
    for where in ("k = 7", "more > 1", "p = 2", "s IS NULL AND k < 5"):
        order = [("p", "ascending"), ("k", "ascending")]
        assert a.scan(where).to_table().sort_by(order) == b.scan(where).to_table().sort_by(order)
        assert _row_groups(a, where) == _row_groups(b, where)
    covered = [table.indexes().select(["name", "files_covered"]).to_pylist() for table in (a, b)]
    assert covered[0] == covered[1]
    assert sks.sync(None, one) == a.version


def test_findings_are_those_of_the_table(lakes: tuple[Path, Path]) -> None:
    lake, _ = lakes
    ss.open(lake).sync()
    assert [f.kind for f in sks.verify(None, lake, deep=True)] == ["quarantined"]
    (lake / "p=10" / "a.parquet").unlink()
    make_file(lake, "p=11/a.parquet", {"k": [1]})
    run = next((lake / ".skipstone" / "runs").rglob("*.sbf"))
    data = bytearray(run.read_bytes())
    data[len(data) // 2] ^= 0xFF
    run.write_bytes(data)
    for deep in (False, True):
        found = sks.verify(None, lake, deep)
        assert found == ss.open(lake).verify(deep)
        assert {"quarantined", "missing", "overwritten"} <= {finding.kind for finding in found} or deep


def test_a_clean_removes_what_the_table_would(lakes: tuple[Path, Path]) -> None:
    lake, _ = lakes
    table = ss.open(lake)
    table.sync()
    options = {"retain_versions": 1, "min_age": dt.timedelta(0), "delete_data": True}
    with table.transaction() as tx:
        tx.overwrite()
        tx.write(pa.table({"k": [1], "p": [1]}))
    foreseen = sks.clean(None, lake, **options, dry_run=True)
    assert foreseen.sort_by("path") == ss.open(lake).clean(**options, dry_run=True).sort_by("path")
    removed = sks.clean(None, lake, **options)
    assert set(foreseen["path"].to_pylist()) <= set(removed["path"].to_pylist())
    data = [row["path"] for row in removed.to_pylist() if row["kind"] == "data"]
    assert len(data) >= FOLDERS - 1 and not any((lake / path).exists() for path in data)
    assert ss.open(lake).scan().count() == 1
    assert [finding.kind for finding in ss.open(lake).verify(deep=True)] == ["quarantined"]
