"""The runs of a secondary index: how many there are, what is read of them, and what building one needs.

What they contain is compared with the rows in test_index_types.py."""

from __future__ import annotations

import tempfile
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
from skipstone.base.ordered_keys import OrderedCode
from skipstone.engine.indexes.secondary import build, format
from skipstone.engine.indexes.secondary.format import PLAIN, GroupValues, delta_coded, encode_entries, positions_of
from skipstone.engine.state import Run
from skipstone.engine.state.run_format import LEVELS_MAX
from skipstone.errors import CorruptionError

SCHEMA = pa.schema([("k", pa.int64())])


def _runs(table: ss.Table) -> tuple[Run, ...]:
    return next(index.runs for index in table.handle.instant.indexes if index.kind == "secondary")


def _file(root: Path, name: str, values: pa.Array, **options: object) -> None:
    pq.write_table(pa.table({"k": values}), root / name, **options)


def test_rule_27_narrower_files_are_encoded_as_the_columns_type(tmp_path: Path) -> None:
    """A float32 0.1 is another value than a double 0.1; an int32 1 is the double 1."""
    _file(tmp_path, "a.parquet", pa.array([0.1, 1.0]))
    _file(tmp_path, "b.parquet", pa.array([0.1, 1.0], pa.float32()))
    _file(tmp_path, "c.parquet", pa.array([0, 1], pa.int32()))
    files = [f"{name}.parquet" for name in "abc"]
    table = ss.create(tmp_path, schema=pa.schema([("k", pa.float64())]), files=files)
    table.create_index("k", kind="secondary")
    table.drop_index("k", kind="stats")
    assert table.scan(col("k") == 0.1).positions().to_pylist() == [{"path": "a.parquet", "row": 0}]
    assert sorted(table.scan(col("k") == 1.0).positions()["path"].to_pylist()) == files


def test_without_room_to_sort_in_the_error_names_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _file(tmp_path, "a.parquet", pa.array(range(100)), row_group_size=10)
    table = ss.create(tmp_path)
    monkeypatch.setattr(build, "machine_memory_bytes", lambda: 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ss.StorageError, match="TMPDIR"):
        table.create_index("k", kind="secondary")
    assert ss.open(tmp_path).version == 1


@given(rows=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=30, unique=True))
def test_positions_come_back_from_their_distances(rows: list[int]) -> None:
    rows.sort()
    values = OrderedCode([pa.bool_()]).encode([pa.array([True] * len(rows))])
    entry = encode_entries([GroupValues(1, 0, 5, values).with_places(PLAIN)])
    found = positions_of(*(np.asarray(entry.values.column(i)) for i in (0, 1)), entry.values.column(2).combine_chunks())
    assert found.tolist() == list(range(5, 5 + len(rows)))
    # Distances of any width, as rows that are far apart have.
    marks = np.zeros(len(rows), dtype=bool)
    marks[1:] = True
    more = delta_coded(np.array(rows), marks, np.array([len(rows)]))
    assert positions_of(np.array(rows[:1]), np.array([len(rows)]), more).tolist() == rows
    with pytest.raises(CorruptionError):
        positions_of(np.array(rows[:1]), np.array([len(rows) + 1]), more)


def test_levels_stay_few_and_large_shards_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if commits may rewrite nothing but what the number of levels makes them merge."""
    monkeypatch.setattr(format, "POLICY", replace(format.POLICY, commit_bytes=1, commit_share=0))
    table = ss.create(tmp_path, schema=SCHEMA)
    table.create_index("k", kind="secondary", shard_bytes=2_000)

    def write(first: int, count: int) -> None:
        with table.transaction() as tx:
            tx.write(pa.table({"k": range(first, first + count)}))

    for number in range(1, 16):
        write(number * 5_000, 4_000 if number == 1 else 900)
        assert len({run.segments for run in _runs(table)}) <= LEVELS_MAX
    table.optimize()
    whole = _runs(table)
    assert len({run.segments for run in whole}) <= 2 and len(whole) > 3
    write(1 << 40, 12_000)
    table.optimize()
    stayed = {run.path for run in whole} & {run.path for run in _runs(table)}
    assert len(stayed) >= len(whole) - 2  # keys above all others touch the last shard at most
    for key in (5_000, 75_899, 1 << 40):
        assert table.scan(col("k") == key).count() == 1


def test_a_look_up_opens_one_shard_and_reads_one_block(tmp_path: Path) -> None:
    _file(tmp_path, "a.parquet", pa.array(np.random.default_rng(0).permutation(200_000)))
    table = ss.create(tmp_path)
    table.create_index("k", kind="secondary", shard_bytes=100_000)
    assert len(_runs(table)) > 5
    table.drop_index("k", kind="stats")
    table.handle.forget()
    opened = ss.open(tmp_path)
    for key, count, requests_max in ((77_777, 1, 3), (1 << 40, 0, 0)):
        plan = opened.scan(col("k") == key)
        assert plan.count() == count
        (step,) = [step for step in plan.steps if step.name == "positions"]
        assert step.requests <= requests_max, key
