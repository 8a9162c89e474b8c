"""What filters weigh: sized for the least bytes or as was asked, by the values that are there, skewed or not."""

from __future__ import annotations

import json
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
from skipstone.bloom import cheapest_blocks, fpp_of, solve_blocks
from skipstone.engine.indexes.bloom.file_filter import FileFilter
from skipstone.hfile_like import StridedSection

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


def test_the_default_costs_the_least_bytes_and_says_so(tmp_path: Path) -> None:
    """The same keys beside little and beside much: what a needless row group costs decides."""
    sizes = {}
    for width in (0, 400):
        rng = np.random.default_rng(2)
        wide = pa.array([rng.bytes(width) for _ in range(ROWS)])
        groups = [pa.table({"k": _keys(seed), "wide": wide}) for seed in range(4)]
        table = _lake(tmp_path / str(width), groups)
        table.create_index("k", kind="bloom")
        footer = pq.read_metadata(tmp_path / str(width) / "a.parquet")
        expected = 0
        for number in range(4):
            group = footer.row_group(number)
            group_bytes = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
            expected += 36 * cheapest_blocks(ROWS, 10, group_bytes)  # one in ten look-ups finds its value
        sizes[width] = _size_bytes(table)
        assert expected <= sizes[width] <= 2.2 * expected + 4096  # the coarse filter, and the run itself
        assert all(_row_groups(table, _keys(seed)[5]) == [seed] for seed in range(4))
        options = _options(table)
        assert options["fpp"] is None and options["lookups"] == 100
        assert "least bytes" in options["size"] and "100 look-ups" in options["size"]
        assert "bloom(k) is sized to cost the least bytes" in table.scan(col("k") == 5).explain()
    assert sizes[400] > sizes[0]


def test_more_lookups_are_worth_more_bytes(tmp_path: Path) -> None:
    groups = [pa.table({"k": _keys(seed)}) for seed in range(2)]
    sizes = []
    for lookups in (1, 100, 100_000):
        table = _lake(tmp_path / str(lookups), groups)
        table.create_index("k", kind="bloom", lookups=lookups)
        assert _options(table)["lookups"] == lookups
        sizes.append(_size_bytes(table))
    assert sizes == sorted(sizes) and len(set(sizes)) == 3


def test_a_given_fpp_stays_what_was_asked(tmp_path: Path) -> None:
    table = _lake(tmp_path, [pa.table({"k": _keys(seed)}) for seed in range(3)])
    table.create_index("k", kind="bloom", fpp=0.02)
    assert _options(table)["fpp"] == 0.02 and "0.02" in _options(table)["size"]
    assert "sized for an fpp of 0.02, as requested" in table.scan(col("k") == 5).explain()
    blocks = 3 * solve_blocks(ROWS, 0.02) + solve_blocks(3 * ROWS, 0.02)
    assert 32 * blocks <= _size_bytes(table) <= 36 * blocks + 4096


@pytest.mark.parametrize(
    "given",
    [
        *({"fpp": bad} for bad in (0, 1.0, True, "1%", float("nan"))),
        *({"lookups": bad} for bad in (0, 1.5, True, 10**13)),
        {"fpp": 0.01, "lookups": 5},
    ],
)
def test_sizes_that_mean_nothing_are_refused(tmp_path: Path, given: dict) -> None:
    table = _lake(tmp_path, [pa.table({"k": [1]})])
    with pytest.raises(ss.InvalidArgumentError, match=r"fpp|lookups"):
        table.create_index("k", kind="bloom", **given)


def test_distinct_values_are_counted_not_rows(tmp_path: Path) -> None:
    many = pa.table({"k": np.repeat(np.arange(50), 4_000)})
    table = _lake(tmp_path / "repeated", [many])
    table.create_index("k", kind="bloom", fpp=0.01)
    assert _size_bytes(table) < 4096
    assert table.scan(col("k") == 49).count() == 4_000


@pytest.mark.parametrize("fpp", [None, 0.01])
def test_one_row_group_of_a_thousand_times_the_keys_does_not_inflate_the_others(
    tmp_path: Path, fpp: float | None
) -> None:
    small = [pa.table({"k": _keys(seed, 100)}) for seed in range(1, 60)]
    groups = [*small[:30], pa.table({"k": _keys(0, 100_000)}), *small[30:]]
    table = _lake(tmp_path, groups)
    table.create_index("k", kind="bloom", fpp=fpp)
    alone = _lake(tmp_path / "alone", [groups[30]])
    alone.create_index("k", kind="bloom", fpp=fpp)
    assert _size_bytes(table) <= 1.3 * _size_bytes(alone) + 59 * 1024
    for number, rows in enumerate(groups):
        found = _row_groups(table, rows["k"][3].as_py())
        assert number in found and len(found) <= 4
    with ss.open(tmp_path) as fresh:
        plan = fresh.scan(col("k") == int(_keys(7, 100)[0]))
        plan.row_groups()
        assert sum(step.requests for step in plan.steps if step.name == "row groups") <= 6


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


@pytest.mark.parametrize("fpp", [None, 0.01])
def test_merging_runs_does_not_stretch_filters(tmp_path: Path, fpp: float | None) -> None:
    """Small and larger commits in turn: merged again and again, small filters stay small."""
    table = ss.create(tmp_path, schema=pa.schema([("k", pa.int64())]))
    table.create_index("k", kind="bloom", fpp=fpp)
    counts = [100 if commit % 4 else 6_000 for commit in range(24)]
    for commit, count in enumerate(counts):
        with table.transaction() as tx:
            tx.write(pa.table({"k": _keys(commit, count)}))
    own = sum(36 * solve_blocks(count, 0.01 if fpp else 1e-4) for count in counts)
    assert _size_bytes(table) <= 2.2 * own + 24 * 1024
    assert all(table.scan(col("k") == int(_keys(c, n)[3])).count() == 1 for c, n in enumerate(counts))


def test_a_build_tells_how_many_bytes_of_files_are_done(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"k": _keys(number, 10 + number)}), tmp_path / f"{number}.parquet")
    table = ss.create(tmp_path)
    told: list[tuple[str, int, int | None]] = []
    table.create_index("k", kind="bloom", progress=lambda *one: told.append(one))
    sizes = table.files()["size_bytes"].to_pylist()
    assert [done for step, done, _ in told if "bytes" in step] == np.cumsum(sizes).tolist()
    assert [one for one in told if "bytes" not in one[0]] == [("bloom(k)", n, 3) for n in (1, 2, 3)]


def test_the_fpp_of_row_groups_is_as_asked(tmp_path: Path) -> None:
    """4,000 absent keys of 4 row groups at 10%: more false ones than this bound by chance less than once in 10**6."""
    groups = [pa.table({"k": _keys(seed, 3_000)}) for seed in range(4)]
    table = _lake(tmp_path, groups)
    table.create_index("k", kind="bloom", fpp=0.1)
    rate = fpp_of(3_000, solve_blocks(3_000, 0.1))
    false = sum(len(_row_groups(table, key)) for key in _keys(99, 400))
    assert false <= 4 * 400 * rate + 5 * np.sqrt(4 * 400 * rate) + 10


@given(st.binary(max_size=80))
def test_rule_30_damaged_places_of_fine_filters_are_refused(more: bytes) -> None:
    """Whatever they say: sections that fit each other, or a CorruptionError."""
    row = {"fine_offset": 8, "fine_rows": 4, "fine_stride": 64, "fine_more": more, "hash": "int"}
    try:
        found = FileFilter.of_row(row, "a.sbf")
    except ss.CorruptionError:
        return
    assert sum(section.stride for section in found.sections) == 32 * found.row_groups
    assert FileFilter.of_row(found.row(), "a.sbf") == found


def test_places_of_fine_filters_come_back() -> None:
    sections = tuple(StridedSection("fine", 8 + 1000 * i, 4 >> i, 32 * n) for i, n in enumerate((2, 1)))
    told = FileFilter(sections, "parquet:INT32 decimal[2]", bytes([0, 1, 0]))
    assert FileFilter.of_row(told.row(), "a.sbf") == told and told.row_groups == 3
