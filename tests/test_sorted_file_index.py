"""The block index in levels: whatever the fan-out, a file answers the same, and reads few nodes of it."""

import io
from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.errors import CorruptionError
from skipstone.hfile_like import BytesSource, SortedFileReader, SortedFileWriter, index_build, merge_runs
from skipstone.hfile_like.summaries import has_bounds
from sorted_files import nodes_of
from sorted_files import written as plainly_written

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def written(entries, fan_out: int, **options) -> bytes:
    """A file of {key: (n, s) or None for a tombstone} with nodes of so many rows."""
    target = io.BytesIO()
    held = sorted(entries.items())
    options = {"block_size": 1, "summaries": ["n", "s"], **options}
    with nodes_of(fan_out), SortedFileWriter(target, schema=SCHEMA, **options) as w:
        values = [{"n": None, "s": None} if v is None else {"n": v[0], "s": v[1]} for _, v in held]
        w.write([k for k, _ in held], pa.RecordBatch.from_pylist(values, SCHEMA), [v is None for _, v in held])
        if held:
            w.end_group("all")
    return target.getvalue()


class Counting(BytesSource):
    """A file in memory that tells what was read of it."""

    def __init__(self, data: bytes):
        super().__init__(data)
        self.ranges: list[tuple[int, int]] = []

    def read_ranges(self, ranges):
        self.ranges += ranges
        return super().read_ranges(ranges)


keys = st.binary(max_size=3)
cells = st.none() | st.tuples(st.none() | st.integers(-5, 5), st.none() | st.text(max_size=2))


@given(st.dictionaries(keys, cells, max_size=60), st.integers(2, 5), st.lists(keys), st.integers(-6, 6))
def test_any_fan_out_answers_like_a_dictionary(entries, fan_out, asked, low):
    data = written(entries, fan_out)
    reader = SortedFileReader(data)
    assert reader.num_blocks == len(entries) and reader.num_entries == len(entries)
    live = {k: v for k, v in entries.items() if v is not None}
    assert reader.num_deleted == len(entries) - len(live)
    for key in [*asked, *entries]:
        found = reader.get(key)
        assert (found and (found["n"], found["s"])) == live.get(key)
    assert reader.scan_table().column("key").to_pylist() == sorted(live)
    for start in asked:
        assert reader.scan_table(start=start).column("key").to_pylist() == [k for k in sorted(live) if k >= start]
        assert reader.scan_table(start).column("key").to_pylist() == [k for k in sorted(live) if k.startswith(start)]
    assert [b.first_key for b in reader.blocks()] == sorted(entries)
    if entries:
        assert reader.ends() == (min(entries), max(entries))
        assert reader.groups()["all"].entries == len(entries)
    ordered = [entries[k] for k in sorted(entries)]
    kept = [i for i, v in enumerate(ordered) if v is not None and v[0] is not None and low <= v[0] <= low + 3]
    assert reader.blocks_within("n", low, low + 3) == kept
    named = [i for i, v in enumerate(ordered) if v is not None and v[1] is not None and "0" <= v[1] <= "a"]
    assert reader.blocks_within("s", "0", "a") == named
    found = reader.scan_table(between={"n": (low, low + 3)}, columns=["s"])
    assert found.column_names == ["key", "s"]
    assert found.column("key").to_pylist() == [sorted(entries)[i] for i in kept]
    for start in asked[:2]:
        found = reader.scan_table(start=start, between={"s": ("0", None), "n": (None, low)})
        wanted = [k for k, v in sorted(live.items()) if None not in v and k >= start and v[1] >= "0" and v[0] <= low]
        assert found.column("key").to_pylist() == wanted
    for start in range(0, len(ordered), 7):
        summary = reader.summary("n", range(start, len(ordered)))
        nulls = [int(v is not None and v[0] is None) for v in ordered[start:]]
        assert summary.null_count.tolist() == nulls
    assert reader.verify() == []


@given(st.dictionaries(keys, cells, min_size=1, max_size=40), st.dictionaries(keys, cells, max_size=40))
def test_runs_of_many_levels_merge(older, newer):
    target = io.BytesIO()
    merge_runs([written(older, 2), written(newer, 3)], target, block_size=1)
    reader = SortedFileReader(target.getvalue())
    expected = {**older, **newer}
    found = reader.scan_table(include_deleted=True).to_pylist()
    assert {row["key"]: None if row["deleted"] else (row["n"], row["s"]) for row in found} == expected
    assert reader.verify() == []


def test_a_get_reads_one_node_of_each_level_and_one_block():
    entries = {f"{i:06}".encode(): (i, "x" * 40) for i in range(4000)}
    data = written(entries, 8, compression="none")
    source = Counting(data)
    reader = SortedFileReader(source, tail_bytes=4096)
    assert reader.get(b"002222") == {"n": 2222, "s": "x" * 40}
    # the tail; nodes of 3 levels (4000 blocks, 500, 63 in the footer's 8 rows); the block
    assert len(source.ranges) == 1 + 3 + 1
    assert sum(length for _, length in source.ranges) < len(data) / 20
    source.ranges.clear()
    assert reader.get(b"002223") == {"n": 2223, "s": "x" * 40}
    assert len(source.ranges) == 1


def test_a_range_over_a_value_reads_few_nodes_and_no_block():
    entries = {f"{i:06}".encode(): (i // 100, "x") for i in range(4000)}
    data = written(entries, 8, compression="none")
    source = Counting(data)
    reader = SortedFileReader(source, tail_bytes=4096)
    source.ranges.clear()
    assert reader.blocks_within("n", 17, 17) == list(range(1700, 1800))
    assert sum(length for _, length in source.ranges) < len(data) / 15
    assert reader.blocks_within("n", 99, 100) == []
    assert list(reader.scan(between={"n": (99, None)})) == []
    assert reader.blocks_within("n", 0, 3, range(350, 500)) == list(range(350, 400))


def test_the_head_of_a_large_index_stays_small():
    # 186,000 blocks are 50 million names of 111 bytes; keys here take as much room in the index.
    count, rng = 186_000, np.random.default_rng(3)
    random_parts = [rng.bytes(16).hex() for _ in range(64)]
    builder = index_build.IndexBuilder({}, None)
    for i in range(count):
        name = b"year=2020/month=01/day=%08d/%s-0_1-2-3_20200101000000.parquet" % (i, random_parts[i % 64].encode())
        builder.add([index_build.BlockInfo(8 + 48 * i, 48, 270, 0, 32000, name, name + b"~")], {})
    pieces: list[bytes] = []
    top, _ = builder.write(pieces.append, 8 + 48 * count)
    assert len(top) < 8 * 1024
    assert max(map(len, pieces)) < 128 * 1024


@pytest.mark.parametrize("column", ["n", "s"])
def test_bounds_of_another_type_are_refused(column):
    reader = SortedFileReader(written({b"a": (1, "x")}, 2))
    with pytest.raises(ValueError, match="is between two values of type"):
        reader.blocks_within(column, 1.5, object())
    assert reader.blocks_within("nothing", 1, 2) is None


def test_a_damaged_node_is_told_apart_from_its_neighbours():
    entries = {f"{i:04}".encode(): (i, "x") for i in range(64)}
    data = bytearray(written(entries, 4, compression="none"))
    reader = SortedFileReader(bytes(data))
    end = max(b.offset + b.length for b in reader.blocks())
    data[end + 20] ^= 1  # in the first node's table
    damaged = SortedFileReader(bytes(data), tail_bytes=48)
    with pytest.raises(CorruptionError, match="index"):
        damaged.get(b"0001")
    assert damaged.get(b"0060") == {"n": 60, "s": "x"}
    assert damaged.verify()


KINDS = {
    pa.int64(): [1, 5, 9],
    pa.uint64(): [1, 5, 2**63 + 1],
    pa.float64(): [1.0, 5.0, float("nan")],
    pa.bool_(): [False, True],
    pa.decimal128(9, 2): [Decimal("1.50"), Decimal("2.50")],
    pa.date32(): [date(2020, 1, 1), date(2021, 1, 1)],
    pa.time64("us"): [time(1), time(2)],
    pa.timestamp("us", "Europe/Rome"): [datetime(2020, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC)],
    pa.large_string(): ["a", "b"],
    pa.binary(2): [b"aa", b"bb"],
}


@pytest.mark.parametrize("kind", list(KINDS), ids=str)
def test_values_of_any_type_lie_between_bounds(kind):
    values = [*KINDS[kind], None]
    schema = pa.schema([("v", kind)])
    summaries = ["v"] if has_bounds(kind) else []
    keys = [b"%d" % i for i in range(len(values))]
    data = plainly_written(keys, pa.record_batch([pa.array(values, kind)], schema), block_size=1, summaries=summaries)
    reader = SortedFileReader(data)
    for i, low in enumerate(KINDS[kind]):
        found = reader.scan_table(between={"v": (low, low)}).column("key").to_pylist()
        assert found == ([] if low != low else [keys[i]])
    assert reader.scan_table(between={"v": (None, None)}).num_rows == len(values) - 1


def test_bounds_that_are_none_are_refused():
    reader = SortedFileReader(written({b"a": (1, "x")}, 2))
    for between, told in [
        ({"n": 1}, "between two values"),
        ({"n": ("x", 2)}, "between two values"),
        ({"q": (1, 2)}, "q"),
    ]:
        with pytest.raises(ValueError, match=told):
            reader.scan_table(between=between)
    with pytest.raises(ValueError, match="tombstones"):
        reader.scan(between={"n": (1, 2)}, include_deleted=True)
