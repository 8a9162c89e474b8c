"""The size of filters: as was asked, by the values that are there, skewed or not."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from hypothesis import given
from hypothesis import strategies as st
from skipstone import col
from skipstone.bloom import solve_blocks
from skipstone.engine.indexes.bloom import task_filters
from skipstone.engine.indexes.bloom.file_filter import FileFilter
from skipstone.engine.indexes.bloom.format import FilterRun
from skipstone.hfile_like import RowTable

ROWS = 20_000


def _keys(seed: int, count: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 62, count)


def _lake(root: Path, groups: list[pa.Table], group_rows: int = ROWS) -> ss.Table:
    """A table of one file, with these row groups."""
    root.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(root / "a.parquet", groups[0].schema) as file:
        for rows in groups:
            file.write_table(rows, row_group_size=max(1, rows.num_rows))
    return ss.create(root)


def _size_bytes(table: ss.Table, column: str = "k") -> int:
    return next(r["size_bytes"] for r in table.indexes().to_pylist() if r["name"] == f"bloom({column})")


def _options(table: ss.Table) -> dict:
    return json.loads(next(r["options"] for r in table.indexes().to_pylist() if r["kind"] == "bloom"))


def _row_groups(table: ss.Table, key: int) -> list[int]:
    return table.scan(col("k") == int(key)).row_groups()["row_group"].to_pylist()


def _bits_per_value(table: ss.Table, values: int) -> float:
    return 8 * _size_bytes(table) / values


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    "group_count, rows, bits_max", [(16, 16_000, 22), (1, 16_000, 22), (2, 16_000, 22), (64, 64_000, 24)]
)
def test_an_index_of_uuids_takes_few_bits_per_value(
    tmp_path: Path, group_count: int, rows: int, bits_max: float
) -> None:
    """A file of many row groups has a filter over the file, too."""
    files = 3 if group_count < 64 else 2
    values = []
    for number in range(files):
        rng = np.random.default_rng(number)
        values.append(pa.array([uuid.UUID(bytes=rng.bytes(16)).hex for _ in range(rows)]))
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"k": values[-1]}), path, row_group_size=rows // group_count)
    table = ss.create(tmp_path)
    table.create_index("k", kind="bloom")
    assert _options(table)["fpp"] == 0.001
    assert 16 < _bits_per_value(table, files * rows) <= bits_max
    for number in range(files):
        for at in range(0, rows, rows // 8 - 1):
            kept = table.scan(col("k") == values[number][at].as_py()).row_groups().to_pylist()
            assert any(one["path"] == f"{number}.parquet" for one in kept)
            assert table.scan(col("k") == values[number][at].as_py()).count() == 1
    strangers = [uuid.UUID(bytes=np.random.default_rng([7, i]).bytes(16)).hex for i in range(100)]
    false = sum(table.scan(col("k") == one).row_groups().num_rows for one in strangers)
    # At most 0.1% of row groups: more than this by chance less than once in a million.
    expected = 0.001 * 100 * files * group_count
    assert false <= expected + 5 * np.sqrt(expected) + 5


def test_commits_take_as_many_bits_as_a_build(tmp_path: Path) -> None:
    table = ss.create(tmp_path, schema=pa.schema([("k", pa.int64())]))
    table.create_index("k", kind="bloom")
    with table.transaction() as tx:
        for seed in range(8):
            with ss.TaskWriter(replace(tx.task_spec(), row_group_rows=ROWS)) as task:
                task.write(pa.table({"k": _keys(seed)}))
            tx.add_task(task.result)
    assert 16 < _bits_per_value(table, 8 * ROWS) <= 22
    assert all(table.scan(col("k") == int(_keys(seed)[9])).files().num_rows <= 2 for seed in range(8))


@pytest.mark.parametrize("fpp", [1e-6, 0.02, 0.1])
def test_a_given_fpp_is_kept_and_explained(tmp_path: Path, fpp: float) -> None:
    table = _lake(tmp_path, [pa.table({"k": _keys(seed)}) for seed in range(3)])
    table.create_index("k", kind="bloom", fpp=fpp)
    assert _options(table) == {"fpp": fpp, "maintain": "commit"}
    assert f"bloom(k) has an fpp of {fpp:g}" in table.scan(col("k") == 5).explain()
    blocks = 3 * solve_blocks(ROWS, fpp)
    assert 32 * blocks <= _size_bytes(table) <= 9 / 8 * 36 * blocks + 4096
    assert all(_row_groups(table, _keys(seed)[5]) == [seed] for seed in range(3)) or fpp > 0.01


@pytest.mark.parametrize("fpp", [0, 1.0, True, "1%", float("nan"), 0.2, 1e-7])
def test_an_fpp_that_means_nothing_is_refused(tmp_path: Path, fpp: object) -> None:
    table = _lake(tmp_path, [pa.table({"k": [1]})])
    with pytest.raises(ss.InvalidArgumentError, match=r"from 1e-06 to 0.1"):
        table.create_index("k", kind="bloom", fpp=fpp)


def test_rule_31_a_filter_over_a_file_that_says_little_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own rate is measured: the row groups' filters are probed then, and no row is lost, merged or not."""
    monkeypatch.setattr(task_filters, "file_fpp", lambda fpp: 0.35)
    monkeypatch.setattr(task_filters, "has_file_level", lambda row_groups, fpp: True)
    groups = [pa.table({"k": _keys(seed, 2_000)}) for seed in range(3)]
    table = _lake(tmp_path, groups)
    table.create_index("k", kind="bloom")
    (run,) = next(index for index in table.handle.instant.indexes if index.kind == "bloom").runs
    assert FilterRun(table.handle.snapshot.readers, run).coarse.members == 0
    monkeypatch.undo()
    for seed in (7, 8):
        with table.transaction() as tx:
            tx.write(pa.table({"k": _keys(seed, 500)}))
    for _ in range(2):
        assert [_row_groups(table, _keys(seed, 2_000)[5]) for seed in range(3)] == [[0], [1], [2]]
        assert all(table.scan(col("k") == int(_keys(seed, 500)[3])).count() == 1 for seed in (7, 8))
        assert table.scan(col("k") == 5).files().num_rows == 1, "the file without a filter over it"
        assert table.scan(col("k") == 5).row_groups().num_rows == 0
        table.optimize()


def test_distinct_values_are_counted_not_rows(tmp_path: Path) -> None:
    many = pa.table({"k": np.repeat(np.arange(50), 4_000)})
    table = _lake(tmp_path / "repeated", [many])
    table.create_index("k", kind="bloom", fpp=0.01)
    assert _size_bytes(table) < 4096
    assert table.scan(col("k") == 49).count() == 4_000


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("written", [True, False])
def test_one_task_of_a_thousand_times_the_keys_does_not_inflate_the_others(tmp_path: Path, written: bool) -> None:
    """Files built one by one, and tasks of one commit: the coarse filters of the small ones stay small."""
    schema = pa.schema([("k", pa.int64())])
    counts = [100] * 40 + [100_000] + [100] * 40
    if written:
        table = ss.create(tmp_path, schema=schema)
        table.create_index("k", kind="bloom", fpp=0.01)
        with table.transaction() as tx:
            for seed, count in enumerate(counts):
                with ss.TaskWriter(replace(tx.task_spec(), row_group_rows=50_000)) as task:
                    task.write(pa.table({"k": _keys(seed, count)}))
                tx.add_task(task.result)
        size_bytes = _size_bytes(table)
    else:
        for seed, count in enumerate(counts):
            pq.write_table(pa.table({"k": _keys(seed, count)}), tmp_path / f"{seed:03}.parquet")
        table = ss.create(tmp_path)
        table.create_index("k", kind="bloom", fpp=0.01)
        size_bytes = _size_bytes(table) - 36 * solve_blocks(100_000, 0.01)
    assert size_bytes <= 36 * solve_blocks(100_000, 0.01) + 80 * 1024
    for seed, count in enumerate(counts):
        assert table.scan(col("k") == int(_keys(seed, count)[7])).files().num_rows in (1, 2, 3)


@given(st.binary(max_size=80))
def test_rule_30_damaged_places_of_fine_filters_are_refused(more: bytes) -> None:
    """Whatever they say: sections that fit each other, or a CorruptionError."""
    row = {"fine_offset": 8, "fine_rows": 4, "fine_stride": 64, "fine_more": more, "hash": "int"}
    try:
        found = FileFilter.of_row(row, "a.sbf")
    except ss.CorruptionError:
        return
    assert found is not None
    assert found.places is None or all(32 * place < found.sections[s].stride for s, place in found.places)
    assert FileFilter.of_row(found.row(), "a.sbf") == found


@pytest.mark.parametrize(
    "change", [{"fine_offset": None}, {"fine_rows": None}, {"fine_more": b""}, {"hash": None}, {"fine_stride": 33}]
)
def test_rule_30_places_that_are_half_there_are_refused(change: dict) -> None:
    row = {"fine_offset": 8, "fine_rows": 4, "fine_stride": 64, "fine_more": None, "hash": "int"}
    with pytest.raises(ss.CorruptionError):
        FileFilter.of_row({**row, **change}, "a.sbf")


def test_places_of_fine_filters_come_back() -> None:
    sections = tuple(RowTable("fine", 8 + 1000 * i, 4 >> i, 32 * n) for i, n in enumerate((2, 1)))
    stored = FileFilter(sections, "int", ((0, 0), (1, 0), (0, 1)))
    assert FileFilter.of_row(stored.row(), "a.sbf") == stored and stored.row_groups == 3
    in_groups = FileFilter(sections[:1], "int", ((0, 1), (0, 0)))
    assert FileFilter.of_row(in_groups.row(), "a.sbf") == in_groups
    nowhere = dict.fromkeys(stored.row()) | {"hash": "int"}
    assert FileFilter.of_row(nowhere, "a.sbf") is None
