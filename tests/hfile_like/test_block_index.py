"""The block index in levels: whatever the fan-out, a file answers the same, and reads few nodes of it."""

import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.errors import CorruptionError
from skipstone.hfile_like import BytesSource, SortedFileReader, SortedFileWriter, index_building, merge_runs
from sorted_file_builders import nodes_of

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


@given(st.dictionaries(keys, cells, max_size=60), st.integers(2, 5), st.lists(keys))
def test_any_fan_out_answers_like_a_dictionary(entries, fan_out, asked):
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
    for start in range(0, len(ordered), 7):
        summary = reader.summaries(["n"], range(start, len(ordered)))["n"]
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


def test_the_head_of_a_large_index_stays_small():
    # 186,000 blocks are 50 million names of 111 bytes; keys here take as much room in the index.
    count, rng = 186_000, np.random.default_rng(3)
    random_parts = [rng.bytes(16).hex() for _ in range(64)]
    builder = index_building.IndexBuilder({}, None)
    for i in range(count):
        name = b"year=2020/month=01/day=%08d/%s-0_1-2-3_20200101000000.parquet" % (i, random_parts[i % 64].encode())
        builder.add([index_building.BlockInfo(8 + 48 * i, 48, 270, 0, 32000, name, name + b"~")], {})
    pieces: list[bytes] = []
    top, _ = builder.write(pieces.append, 8 + 48 * count)
    assert len(top) < 8 * 1024
    assert max(map(len, pieces)) < 128 * 1024


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
