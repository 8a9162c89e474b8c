"""A secondary index that is built over files: what each holds under its own schema, in bounded memory."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from skipstone.engine.indexes.column_reader import ColumnReader
from skipstone.engine.indexes.secondary.build import FILE_COLUMNS, build_runs
from skipstone.engine.indexes.secondary.format import run_format
from skipstone.engine.indexes.secondary.key_ranges import Interval, Prefix, Values, key_ranges
from skipstone.engine.indexes.secondary.reader import SecondaryReader
from skipstone.engine.state import IndexState


def _build(table: ss.Table, names: list[str], **options: object) -> tuple[SecondaryReader, list[int]]:
    """The index of some columns over all live files, and what it left out."""
    instant = table.handle.instant
    index = IndexState(0, "secondary", tuple(instant.columns[name] for name in names), {}, "commit")
    reader = ColumnReader.of(table.handle.storage, instant, index)
    kinds = [column.type for column in reader.columns]
    files = table.handle.committed.files().select(FILE_COLUMNS)
    storage = table.handle.index_storage
    form = run_format(options.pop("shard_bytes", 1 << 26))  # type: ignore[arg-type]
    runs, holes = build_runs(
        reader,
        kinds,
        storage,
        files,
        lambda i: f"runs/te/{uuid.uuid4().hex}-{i}.sbf",
        (1, table.version),
        form,
        **options,
    )
    return SecondaryReader(table.handle.readers, runs, kinds), holes


def _found(table: ss.Table, reader: SecondaryReader, *parts: object) -> list[tuple[str, int, int]]:
    """(path, row group, row) of what is asked for."""
    files = table.handle.committed.files()
    paths = dict(zip(files["file_id"].to_pylist(), files["path"].to_pylist(), strict=True))
    found = reader.positions(key_ranges(reader.code, list(parts)))
    return [(paths[f], g, r) for f, g, r in zip(*(c.tolist() for c in found), strict=True)]


def test_each_file_speaks_by_its_own_schema(tmp_path: Path) -> None:
    kinds = [pa.int32(), pa.int64(), pa.dictionary(pa.int8(), pa.int32())]
    for number, kind in enumerate(kinds):
        values = pa.array([1, None, 3, 1, 2], pa.int64()).cast(pa.int32())
        column = values.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else values.cast(kind)
        rows = pa.table({"k": column, "n": pa.array([{"t": "x"}, {"t": None}, None, {"t": "xy"}, {"t": "y"}])})
        pq.write_table(rows, tmp_path / f"f{number}.parquet", row_group_size=2)
    pq.write_table(pa.table({"other": [7, 8]}), tmp_path / "lacks.parquet")
    table = ss.create(tmp_path)
    reader, holes = _build(table, ["k"])
    assert holes == []
    one = pa.array([1], pa.int64())
    assert _found(table, reader, Values(one)) == [
        (f"f{n}.parquet", g, r) for n in range(3) for g, r in ((0, 0), (1, 3))
    ]
    nulls = _found(table, reader, Values(pa.nulls(1, pa.int64())))
    assert nulls == [*((f"f{n}.parquet", 0, 1) for n in range(3)), ("lacks.parquet", 0, 0), ("lacks.parquet", 0, 1)]
    reader, _ = _build(table, ["n.t", "k"])
    assert [r for _, _, r in _found(table, reader, Prefix(b"x"))] == [0, 3] * 3
    assert len(_found(table, reader, Values(pa.nulls(1, pa.string())))) == 2 * 3 + 2
    both = _found(table, reader, Values(pa.array(["xy", "y"])), Values(pa.array([1], pa.int64())))
    assert [r for _, _, r in both] == [3] * 3


def test_what_cannot_be_read_is_a_hole(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"k": [1, 2, 3]}), tmp_path / f"f{number}.parquet")
    table = ss.create(tmp_path)
    os.remove(tmp_path / "f0.parquet")
    pq.write_table(pa.table({"k": [1, 2, 3, 4]}), tmp_path / "f1.parquet")
    with pytest.warns(UserWarning, match="not indexed"):
        reader, holes = _build(table, ["k"])
    assert len(holes) == 2
    assert _found(table, reader, Values(pa.array([1]))) == [("f2.parquet", 0, 0)]


def test_large_files_are_read_in_parts_and_sorted_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skipstone.engine.indexes.secondary import build as secondary_build

    monkeypatch.setattr(secondary_build, "_TASK_ROWS", 2000)
    keys = np.random.default_rng(1).integers(0, 3000, 20_000)
    pq.write_table(pa.table({"k": keys[:15_000]}), tmp_path / "a.parquet", row_group_size=1000)
    pq.write_table(pa.table({"k": keys[15_000:]}), tmp_path / "b.parquet", row_group_size=700)
    table = ss.create(tmp_path)
    told: list[tuple[str, int, int | None]] = []
    reader, holes = _build(
        table, ["k"], memory_bytes=100_000, shard_bytes=30_000, progress=lambda *step: told.append(step)
    )
    assert holes == [] and told == [("secondary", 1, 2), ("secondary", 2, 2)]
    for key in (int(keys[0]), int(keys[-1]), 2999):
        found = _found(table, reader, Values(pa.array([key])))
        expected = [("a.parquet", i // 1000, i) for i in np.flatnonzero(keys[:15_000] == key).tolist()]
        expected += [("b.parquet", i // 700, i) for i in np.flatnonzero(keys[15_000:] == key).tolist()]
        assert found == expected
    low, high = pa.scalar(100), pa.scalar(200)
    found_rows = reader.positions(key_ranges(reader.code, [Interval(low, high, upper_open=True)]))
    assert len(found_rows.rows) == int(((keys >= 100) & (keys < 200)).sum())


def test_rule_27_narrower_files_are_encoded_as_the_columns_type(tmp_path: Path) -> None:
    """A float32 0.1 is another value than a double 0.1; an int32 1 is the double 1."""
    pq.write_table(pa.table({"k": pa.array([0.1, 1.0])}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"k": pa.array([0.1, 1.0], pa.float32())}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"k": pa.array([0, 1], pa.int32())}), tmp_path / "c.parquet")
    schema = pa.schema([("k", pa.float64())])
    table = ss.create(tmp_path, schema=schema, files=["a.parquet", "b.parquet", "c.parquet"])
    reader, holes = _build(table, ["k"])
    assert holes == []
    assert _found(table, reader, Values(pa.array([0.1]))) == [("a.parquet", 0, 0)]
    assert _found(table, reader, Values(pa.array([1.0]))) == [(f"{name}.parquet", 0, 1) for name in "abc"]
