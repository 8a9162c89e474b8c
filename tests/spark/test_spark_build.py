"""Indexes built by Spark's executors say what those built here say, and a build that fails leaves nothing."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import few_of
from skipstone import spark_adapter as sks
from skipstone.spark_adapter import executors
from spark_in_process import run_here

FILES = 12


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_here(monkeypatch)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    for at in range(FILES):
        rows = {
            "k": pa.array(draw.integers(0, 1 << 40, 200)),
            "s": pa.array([None if i % 9 == 0 else f"v{v}" for i, v in enumerate(draw.integers(0, 3_000, 200))]),
        }
        (tmp_path / f"p={at % 3}").mkdir(exist_ok=True)
        pq.write_table(pa.table(rows), tmp_path / f"p={at % 3}" / f"{at}.parquet", row_group_size=70)
    ss.create(tmp_path)
    return tmp_path


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(
    ("kind", "columns", "options"),
    [
        ("bloom", "k", {"fpp": 0.001}),
        ("secondary", "k", {}),
        ("secondary", ["s", "k"], {}),
        ("secondary", "s", {"include": ["k"]}),
    ],
)
def test_what_executors_build_answers_as_what_is_built_here(
    lake: Path, kind: str, columns: object, options: dict
) -> None:
    version = sks.create_index(None, lake, columns, kind, **options)
    table = ss.open(lake)
    index = table.indexes().to_pylist()[-1]
    assert (table.version, index["files_covered"], index["files_total"]) == (version, FILES, FILES)
    there = ss.create(lake, index_path=lake.parent / f"{lake.name}-here")
    there.create_index(columns, kind=kind, **options)
    rows = there.scan().to_table().to_pylist()
    column = columns if isinstance(columns, str) else columns[0]
    for row in few_of(rows, 8):
        where = f"{column} IS NULL" if row[column] is None else ss.col(column) == row[column]
        one, other = table.scan(where), there.scan(where)
        assert one.row_groups().sort_by("path") == other.row_groups().sort_by("path")
        assert one.count() == other.count()
        if "include" in options:
            plan, column_names = table.scan(where, columns=["p", "s", "k"]), ["k", "s", "p"]
            order = [(name, "ascending") for name in column_names]
            found = other.to_table().select(column_names).sort_by(order)
            assert plan.to_table().select(column_names).sort_by(order).equals(found)
            assert "answered by index secondary(s), no data file read" in plan.explain()
    assert table.scan("k = 12345").files().num_rows == 0
    assert table.verify(deep=True) == []
    table.optimize()
    assert table.verify(deep=True) == []
    copy = shutil.copytree(lake, lake.parent / f"{lake.name}-copy", copy_function=shutil.copyfile)
    assert ss.adopt(copy).kept == FILES


def test_a_refresh_builds_what_is_lacking_alone(lake: Path) -> None:
    sks.create_index(None, lake, "k", "secondary", maintain="refresh")
    table = ss.open(lake)
    pq.write_table(pa.table({"k": [5], "s": ["x"]}), lake / "p=0" / "new.parquet")
    with table.transaction() as tx:
        tx.add_files(["p=0/new.parquet"])
    before = table.handle.instant.indexes[-1].runs
    version = sks.refresh_index(None, lake, "k", "secondary")
    table.refresh()
    assert table.version == version
    assert set(before) <= set(table.handle.instant.indexes[-1].runs)
    assert table.scan("k = 5").count() == 1
    assert sks.refresh_index(None, lake, "k", "secondary") == version, "nothing to cover makes no version"


def test_a_file_that_cannot_be_read_is_a_hole(lake: Path) -> None:
    gone = lake / "p=1" / "4.parquet"
    kept = gone.read_bytes()
    gone.write_bytes(kept + b"more")
    sks.create_index(None, lake, "k", "bloom")
    index = ss.open(lake).indexes().to_pylist()[-1]
    assert (index["files_covered"], index["files_total"]) == (FILES - 1, FILES)


def test_a_build_that_fails_leaves_the_table_as_it_was(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ss.open(lake)
    monkeypatch.setattr(executors, "_PART_BYTES_MIN", 1)
    for error, kept in ((ss.SchemaError, False), (RuntimeError, True)):
        real = executors._build_part

        def dying(*given: Any, real=real, error=error) -> object:
            if any(path.endswith("7.parquet") for path in given[-1].column("path").to_pylist()):
                raise error("an executor died")
            return real(*given)

        with monkeypatch.context() as patch:
            patch.setattr(executors, "_build_part", dying)
            with pytest.raises(Exception, match="an executor died") as caught:
                sks.create_index(None, lake, "k", "secondary")
        assert type(caught.value) is error
        assert ss.open(lake).version == table.version
        assert bool(_parts_left(lake)) == kept, "what came back from executors is known, and removed at once"
    table.clean(retain_versions=1, min_age=dt.timedelta(0))
    assert _parts_left(lake) == [], "what they had built and not told of is removed by a clean"


def _parts_left(lake: Path) -> list[Path]:
    return [p for p in (lake / ".skipstone" / "runs").rglob("*.sbf") if "-p" in p.name]


def test_a_build_goes_in_waves_and_goes_on_after_its_driver_died(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second wave's driver is lost, as by a kill: nothing of it is cleaned up. Then the build goes on."""
    monkeypatch.setattr(executors, "_FIRST_BYTES_PER_CORE", 3 * executors.OPEN_BYTES)
    waves: list[int] = []
    real = executors.map_parts

    def killed(*args, **given):
        waves.append(1)
        if len(waves) == 2:
            raise GeneratorExit  # which leaves what was written, as a kill does
        return real(*args, **given)

    for kind in ("secondary", "bloom"):
        waves.clear()
        monkeypatch.setattr(executors, "map_parts", killed)
        with pytest.raises(GeneratorExit):
            sks.create_index(None, lake, "k", kind)
        table = ss.open(lake)
        told = table.indexes().to_pylist()[-1]
        assert 0 < told["files_covered"] < FILES
        values = table.scan(columns=["k"]).to_table().column("k").to_pylist()[17::200]  # one of each file
        before = [table.scan(ss.col("k") == value).count() for value in values]
        assert len(values) == FILES and min(before) >= 1
        monkeypatch.setattr(executors, "map_parts", real)
        steps: list[tuple[str, int, int | None]] = []
        sks.refresh_index(None, lake, "k", kind, progress=lambda *told, steps=steps: steps.append(told))
        table.refresh()
        told = table.indexes().to_pylist()[-1]
        assert told["files_covered"] == FILES
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
    values = [v for v in there.scan(columns=["s"]).to_table().column("s").to_pylist() if v][::150]
    for where in [*(f"s < '{v}'" for v in values), "s IS NULL", "s > 'w'", "p = 1 AND s = 'v17'"]:
        one, other = table.scan(where), there.scan(where)
        assert one.row_groups().sort_by("path") == other.row_groups().sort_by("path"), where
        assert one.count() == other.count()
        assert "stats" in one.explain()
    assert table.scan().min("s") == there.scan().min("s")
    assert table.verify(deep=True) == []
    sks.create_index(None, lake, "k", "bloom", index_path=elsewhere)
    pq.write_table(pa.table({"k": [5], "s": ["x"]}), lake / "p=0" / "new.parquet")
    table.refresh()
    table.sync()
    version = sks.optimize(None, lake, index_path=elsewhere)
    table.refresh()
    assert table.version == version
    assert all(told["files_covered"] == FILES + 1 for told in table.indexes().to_pylist())
    assert sks.optimize(None, lake, index_path=elsewhere) == version, "nothing to do makes no version"
    assert table.scan("k = 5").count() == 1
    assert table.verify(deep=True) == []
