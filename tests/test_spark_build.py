"""Indexes built by Spark's executors say what those built here say, and a build that fails leaves nothing."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

import skipstone as ss
from skipstone import spark_adapter as sks

FILES = 12


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


@pytest.mark.parametrize(("kind", "columns"), [("bloom", "k"), ("secondary", "k"), ("secondary", ["s", "k"])])
def test_what_executors_build_answers_as_what_is_built_here(spark, lake: Path, kind: str, columns: object) -> None:
    options = {"fpp": 0.001} if kind == "bloom" else {}
    version = sks.create_index(spark, lake, columns, kind, **options)
    table = ss.open(lake)
    told = table.indexes().to_pylist()[-1]
    assert (table.version, told["files_covered"], told["files_total"]) == (version, FILES, FILES)
    there = ss.create(lake, index_path=lake.parent / f"{lake.name}-here")
    there.create_index(columns, kind=kind, **options)
    rows = there.scan().to_table().to_pylist()
    column = columns if isinstance(columns, str) else columns[0]
    for row in rows[:: len(rows) // 40]:
        where = f"{column} IS NULL" if row[column] is None else ss.col(column) == row[column]
        one, other = table.scan(where), there.scan(where)
        assert one.row_groups().sort_by("path") == other.row_groups().sort_by("path")
        assert one.count() == other.count()
    assert table.scan("k = 12345").files().num_rows == 0
    assert table.verify(deep=True) == []
    table.optimize()
    assert table.verify(deep=True) == []


def test_a_refresh_builds_what_is_lacking_alone(spark, lake: Path) -> None:
    sks.create_index(spark, lake, "k", "secondary", maintain="refresh")
    table = ss.open(lake)
    pq.write_table(pa.table({"k": [5], "s": ["x"]}), lake / "p=0" / "new.parquet")
    with table.transaction() as tx:
        tx.add_files(["p=0/new.parquet"])
    before = table.instant.indexes[-1].runs
    version = sks.refresh_index(spark, lake, "k", "secondary")
    table.refresh()
    assert table.version == version
    assert set(before) <= set(table.instant.indexes[-1].runs)
    assert table.scan("k = 5").count() == 1
    assert sks.refresh_index(spark, lake, "k", "secondary") == version, "nothing to cover makes no version"


def test_a_file_that_cannot_be_read_is_a_hole(spark, lake: Path) -> None:
    gone = lake / "p=1" / "4.parquet"
    kept = gone.read_bytes()
    gone.write_bytes(kept + b"more")
    sks.create_index(spark, lake, "k", "bloom")
    told = ss.open(lake).indexes().to_pylist()[-1]
    assert (told["files_covered"], told["files_total"]) == (FILES - 1, FILES)


def test_a_build_that_fails_leaves_the_table_as_it_was(spark, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from skipstone.spark_adapter import build

    table = ss.open(lake)
    real = build._built

    def dies(part: object) -> object:
        found = real(part)
        if any(path.endswith("7.parquet") for path in part.files.column("path").to_pylist()):
            raise RuntimeError("an executor died")
        return found

    monkeypatch.setattr(build, "_build_parts", _dying_parts(dies))
    with pytest.raises(Exception, match="an executor died"):
        sks.create_index(spark, lake, "k", "secondary")
    assert ss.open(lake).version == table.version
    table.clean(retain_versions=1, min_age=dt.timedelta(0))
    left = [p for p in (lake / ".skipstone" / "runs").rglob("*.sbf") if "-p" in p.name]
    assert left == [], "what the others had built is removed by a clean"
    with pytest.raises(ss.SkipstoneError, match="footers"):
        sks.create_index(spark, lake, "k", "stats")


def _dying_parts(work):
    def build_parts(batches):
        import pickle

        for batch in batches:
            for part in batch.column("part").to_pylist():
                built = pickle.dumps(work(pickle.loads(part)))
                yield pa.RecordBatch.from_pydict({"built": pa.array([built], pa.binary())})

    return build_parts
