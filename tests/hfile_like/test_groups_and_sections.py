"""Groups, metas and row tables of the sorted-block file, and how little of it is read."""

import io
import pickle
import threading

import numpy as np
import pyarrow as pa
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_in_use import kernels
from skipstone.errors import CorruptionError, InvalidArgumentError
from skipstone.hfile_like import BytesSource, SortedFileReader, SortedFileWriter, read_block_range, read_rows
from skipstone.hfile_like.block import Block
from sorted_file_builders import CountingSource, numbered, written

# -- groups, metas, row tables ----------------------------------------------------------------------------------


def grouped():
    target = io.BytesIO()
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    with SortedFileWriter(target, schema=schema, block_size=200) as writer:
        at = 0
        for name, count in (("one", 30), ("none", 0), ("two", 100), ("thrée", 1)):
            numbers = pa.array(range(at, at + count), pa.int64())
            batch = pa.record_batch([numbers, numbers.cast(pa.string())], schema=schema)
            writer.write(
                [b"%04d" % i for i in range(at, at + count)], batch, [i % 4 == 0 for i in range(at, at + count)]
            )
            writer.end_group(name)
            at += count
        writer.write([b"9999"], pa.record_batch({"n": [9999], "s": ["outside"]}))
    return target.getvalue(), writer.groups, schema


def test_groups_are_read_with_and_without_the_footer():
    data, groups, schema = grouped()
    reader = SortedFileReader(data)
    assert reader.groups() == groups
    bounds = {"one": (0, 30), "none": (30, 30), "two": (30, 130), "thrée": (130, 131)}
    for name, (low, high) in bounds.items():
        handle = pickle.loads(pickle.dumps(groups[name]))
        assert handle.entries == high - low
        expected = [i for i in range(low, high) if i % 4]
        assert reader.scan_table(group=name)["n"].to_pylist() == expected
        assert reader.scan_table(b"01", group=name)["n"].to_pylist() == [i for i in expected if 100 <= i < 200]
        alone = read_block_range(BytesSource(data), handle.offset, handle.length, schema)
        assert alone.equals(reader.scan_table(group=name)) or alone.num_rows == len(expected) == 0
        one = read_block_range(data, handle.offset, handle.length, schema, ["s"], include_deleted=True)
        assert one.schema.names == ["key", "s", "deleted"]
        assert one["deleted"].to_pylist() == [i % 4 == 0 for i in range(low, high)]
    with pytest.raises(InvalidArgumentError, match="no group 'four'"):
        reader.scan(group="four")
    with pytest.raises(InvalidArgumentError, match="no meta 'x'"):
        reader.meta("x")


def test_a_name_is_used_once_and_a_group_is_one_range():
    writer = SortedFileWriter(io.BytesIO(), schema=pa.schema([]))
    writer.write([b"a"])
    writer.end_group("g")
    writer.put_meta("g", b"")
    with pytest.raises(InvalidArgumentError, match="already"):
        writer.end_group("g")
    with pytest.raises(InvalidArgumentError, match="already"):
        writer.put_meta("g", b"")
    with pytest.raises(InvalidArgumentError, match="name"):
        writer.end_group("")
    writer.write([b"b"])
    writer.write_rows("s", np.zeros((1, 1), np.uint8), 1)
    writer.write([b"c"])
    with pytest.raises(InvalidArgumentError, match="one range"):
        writer.end_group("h")
    writer.abort()


@settings(max_examples=examples(15), deadline=None)
@given(
    rows=st.integers(1, 60),
    stride=st.integers(1, 40),
    chunks=st.integers(1, 4),
    picks=st.lists(st.integers(0, 59), max_size=20),
    gap=st.sampled_from([0, 50, 10_000]),
)
def test_rows_need_only_their_table(rows, stride, chunks, picks, gap):
    table = np.random.default_rng(rows * 41 + stride).integers(0, 256, (rows, stride), dtype=np.uint8)
    target = io.BytesIO()
    with SortedFileWriter(target, schema=pa.schema([])) as writer:
        writer.write([b"a"])
        section = writer.write_rows("rows", iter(np.array_split(table, chunks)), stride)
        writer.write_rows("other", np.empty((0, 3), np.uint8), 3)
    picks = [p for p in picks if p < rows]
    source = CountingSource(target.getvalue())
    section = pickle.loads(pickle.dumps(section))
    found = read_rows(source, section, picks, gap_bytes=gap)
    assert found.dtype == np.uint8 and found.shape == (len(picks), stride)
    assert np.array_equal(found, table[picks])
    if gap == 0:
        assert sum(n for _, n in source.ranges) == len(set(picks)) * (stride + 4)
    reader = SortedFileReader(target.getvalue())
    assert reader.row_tables()["rows"] == section
    assert np.array_equal(reader.read_rows([("rows", np.array(picks, dtype=np.int64))])[0], table[picks])
    assert reader.row_tables()["other"].rows == 0
    assert reader.verify() == []
    for bad in ([rows], [-1], [0.5], [[0]]):
        with pytest.raises(InvalidArgumentError):
            read_rows(source, section, bad)


def test_neighbouring_rows_are_one_request():
    with SortedFileWriter(target := io.BytesIO(), schema=pa.schema([])) as writer:
        section = writer.write_rows("rows", np.zeros((10_000, 28), np.uint8), 28)
    source = CountingSource(target.getvalue())
    read_rows(source, section, [5, 7, 9_000])
    assert source.ranges == [(section.offset + 5 * 32, 3 * 32), (section.offset + 9_000 * 32, 32)]


# -- how much is read -------------------------------------------------------------------------------------------------


def test_a_file_opens_with_one_read_of_its_tail():
    source = CountingSource(numbered(20_000, block_size=8192, compression="none"))
    reader = SortedFileReader(source)
    assert source.ranges == [(source.size - 64 * 1024, 64 * 1024)]
    source.ranges.clear()
    assert reader.get(b"k00007") == {"n": 7}
    first = reader.blocks()[0]
    assert source.ranges == [(first.offset, first.length)]
    source.ranges.clear()
    assert reader.get(b"a") is None
    assert source.ranges == [], "the index contains no such key"
    reader.scan_table(b"k000")
    assert len(source.ranges) == 1


def test_a_footer_longer_than_the_tail_takes_a_second_read():
    source = CountingSource(numbered(250, block_size=1, compression="none"))
    reader = SortedFileReader(source, footer_read_bytes=1024)
    assert len(source.ranges) == 2
    assert sum(n for _, n in source.ranges) < source.size
    assert reader.get(b"k00007") == {"n": 7}
    assert SortedFileReader(source.data).keys().equals(reader.keys())


def test_an_absent_key_decodes_no_values(monkeypatch):
    reader = SortedFileReader(numbered(1000, block_size=4096))
    decoded = []
    whole = Block.column
    monkeypatch.setattr(Block, "column", lambda self, at: decoded.append(at) or whole(self, at))
    assert reader.get(b"k00007x") is None
    assert not reader.get_many([b"k00007x", b"zz"])["found"].to_pylist()[0]
    assert decoded == []
    assert reader.get(b"k00007") == {"n": 7}
    assert decoded == [0]


def test_uncompressed_values_are_not_copied():
    batch = pa.record_batch({"x": np.arange(1000.0)})
    data = written([b"k%05d" % i for i in range(1000)], batch, compression="none", block_size=1 << 20)
    address = pa.py_buffer(data).address
    values = SortedFileReader(data).scan_table()["x"].chunk(0)
    assert address <= values.buffers()[1].address < address + len(data)


def test_threads_share_a_reader(tmp_path):
    path = tmp_path / "f.skb"
    path.write_bytes(numbered(5000, block_size=1000))
    failures = []
    with SortedFileReader(path) as reader:

        def work(seed):
            for i in np.random.default_rng(seed).integers(0, 5000, 150).tolist():
                if reader.get(b"k%05d" % i) != {"n": i}:
                    failures.append(i)
            if reader.scan_table()["n"].to_pylist() != list(range(5000)):
                failures.append("scan")

        threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


@pytest.mark.parametrize("blocks", [1, 40])
def test_a_scan_of_two_columns_decompresses_two(blocks, monkeypatch):
    columns = {name: pa.array([f"{name} {i % 7} and what compresses" * 3 for i in range(4_000)]) for name in "abcd"}
    keys = [b"%032d" % (i * i) for i in range(4_000)]
    data = written(keys, pa.record_batch(columns), block_size=1 << 23 if blocks == 1 else 1 << 14, compression="zstd")
    unpacked: set[tuple[int, int]] = set()
    checked = Block._checked
    monkeypatch.setattr(
        Block, "_checked", lambda self, section: unpacked.add((self.location.offset, section)) or checked(self, section)
    )
    reader = SortedFileReader(data)
    assert (reader.num_blocks == 1) == (blocks == 1)
    assert reader.scan_table(columns=["d", "b"]).column_names == ["key", "d", "b"]
    # The keys of a block, and two of its four columns: sections 1, 3 and 5.
    assert unpacked == {(block.offset, section) for block in reader.blocks() for section in (1, 3, 5)}


@pytest.mark.parametrize("are_used", [False, True])
def test_of_blocks_read_together_the_one_with_bytes_that_are_no_text_is_named(are_used):
    random = np.random.default_rng(0)
    values = [random.bytes(random.integers(5, 30)).hex().encode() for _ in range(400)]
    values[250] = b"\xff\xfe"
    keys = [b"%04d" % i for i in range(400)]
    data = written(keys, pa.record_batch({"s": pa.array(values, pa.binary())}), block_size=400)
    blocks = SortedFileReader(data).blocks()
    assert len(blocks) > 10
    (damaged,) = [block.offset for block in blocks if block.first_key <= keys[250] <= block.last_key]
    length = blocks[-1].offset + blocks[-1].length - blocks[0].offset
    with kernels(are_used=are_used), pytest.raises(CorruptionError, match="not UTF-8") as caught:
        read_block_range(data, blocks[0].offset, length, pa.schema([("s", pa.string())]))
    assert caught.value.offset == damaged
