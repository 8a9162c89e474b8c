"""Attaching by executors gives the table that attaching here gives, and the same errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from example_counts import examples, only_in_test_all
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason='pyspark is not installed: pip install -e ".[spark]"')

import skipstone as ss
from skipstone import spark_adapter as sks
from skipstone.spark_adapter import jobs, maintenance

_FOLDERS = ["", "p=1", "p=2", "p=__HIVE_DEFAULT_PARTITION__", "p=1/q=a%2Fb", "p=2/q=ü", "_hidden", ".dot", "p=x"]
_NAMES = ["a.parquet", "b.parquet", "ü ü.parquet", "_c.parquet", ".d.parquet", "e.txt", "no_ending", "f.parq"]
_ROWS = {
    "plain": pa.table({"k": pa.array([3, 1, None, 2]), "s": pa.array(["b", None, "a", "ü" * 60])}),
    "none": pa.table({"k": pa.array([], pa.int64()), "s": pa.array([], pa.string())}),
    "nulls": pa.table({"k": pa.nulls(3, pa.int64()), "s": pa.nulls(3, pa.string())}),
    "wider": pa.table({"k": pa.array([1.5, float("nan")]), "s": pa.array(["x", "y"])}),
    "more": pa.table({"k": pa.array([7]), "s": pa.array(["z"]), "more": pa.array([True])}),
    "other": pa.table({"k": pa.array(["text"]), "s": pa.array(["x"])}),
}
_KINDS = [*_ROWS, "plain", "plain", "nulls", "half", "garbage", "empty"]
_trees = st.dictionaries(
    st.tuples(st.sampled_from(_FOLDERS), st.sampled_from(_NAMES)), st.sampled_from(_KINDS), max_size=9
)


def _write(root: Path, tree: dict[tuple[str, str], str]) -> None:
    for (folder, name), kind in tree.items():
        path = root / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind in _ROWS:
            pq.write_table(_ROWS[kind], path, row_group_size=2)
        elif kind == "half":
            pq.write_table(_ROWS["plain"], path)
            path.write_bytes(path.read_bytes()[:-9])
        else:
            path.write_bytes(b"" if kind == "empty" else b"no parquet at all")


def _row_groups(table: ss.Table, where: str) -> object:
    """The row groups that may match, or the error of a column of another type."""
    try:
        return table.scan(where).row_groups().sort_by("path").to_pylist()
    except ss.PredicateError as error:
        return str(error)


def _told(make, **options) -> object:
    """What a table holds, or the error that there was instead of one."""
    try:
        table = make(**options)
    except ss.SkipstoneError as error:
        return type(error), str(error)
    with table:
        files = table.files().sort_by("path")
        asked = ("k > 1", "s IS NULL", "s = 'x'")
        spans = [_row_groups(table, where) for where in asked]
        quarantined = sorted((each["path"], each["reason"]) for each in table.handle.instant.quarantined)
        return (
            table.schema,
            table.partitions().sort_by("partition").to_pylist(),
            files.drop_columns(["file_id"]).to_pylist(),
            spans,
            quarantined,
            sorted((found.kind, found.path) for found in table.verify(deep=True)),
        )


@only_in_test_all
@given(_trees, st.sampled_from([None, ["k"]]), st.booleans())
@settings(max_examples=examples(4, 100))
def test_executors_attach_what_is_attached_here(spark, tmp_path_factory, tree, columns, is_hive: bool) -> None:
    root = tmp_path_factory.mktemp("tree")
    try:
        _write(root, tree)
        options = {"columns": columns, "partitioning": "hive" if is_hive else None, "on_misfit": "quarantine"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(maintenance, "_PART_FILES_MIN", 2)
            one = _told(lambda **o: sks.create(spark, root, **o), index_path=root.parent / f"{root.name}-1", **options)
        other = _told(lambda **o: ss.create(root, **o), index_path=root.parent / f"{root.name}-2", **options)
        assert one == other
    finally:
        for path in root.parent.glob(f"{root.name}*"):
            shutil.rmtree(path)


def test_many_files_go_in_parts_with_progress(spark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_WAVE_BYTES", 1000)
    monkeypatch.setattr(maintenance, "_PART_FILES_MIN", 5)
    draw = np.random.default_rng(1)
    for at in range(40):
        pq.write_table(pa.table({"k": draw.integers(0, 1000, 20)}), tmp_path / f"{at}.parquet")
    steps: list[tuple[str, int, int | None]] = []
    table = sks.create(spark, tmp_path, progress=lambda *told: steps.append(told))
    assert (table.version, table.files().num_rows, steps[-1]) == (1, 40, ("footers, parts", 8, 8))
    tasks = [p.name for p in (tmp_path / ".skipstone" / "tasks").rglob("*.sbf")]
    assert len(tasks) == 8 and not [name for name in tasks if "listing" in name]
    assert table.verify(deep=True) == []
    with pytest.raises(ss.InvalidArgumentError, match="indexed already"):
        sks.create(spark, tmp_path)
    for path in (tmp_path / "3.parquet", tmp_path / "gone.parquet"):
        other = tmp_path.parent / f"{path.stem}-index"
        path.write_bytes(b"nothing") if path.exists() else None
        with pytest.raises((ss.CorruptionError, ss.NotATableError)) as caught:
            sks.create(spark, tmp_path, files=["1.parquet", path.name], index_path=other)
        with pytest.raises(type(caught.value)) as here:
            ss.create(tmp_path, files=["1.parquet", path.name], index_path=other)
        assert str(caught.value) == str(here.value)
        assert not list(other.rglob("*.sbf")), "what the others wrote is removed"
