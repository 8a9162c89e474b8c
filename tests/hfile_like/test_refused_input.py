"""Input that the sorted-block file refuses: it leaves nothing behind."""

import io
import os

import numpy as np
import pyarrow as pa
import pytest
from skipstone.errors import InvalidArgumentError, NotATableError, SchemaError, StorageError
from skipstone.hfile_like import SortedFileReader, SortedFileWriter
from sorted_file_builders import CountingSource, numbered, written


@pytest.mark.parametrize(
    ("second", "named"),
    [
        ([b"b"], "b'b' is there twice"),
        ([b"a"], "b'a' comes after b'b'"),
        ([b"d", b"c"], "b'c' comes after b'd'"),
        ([b"c", b"c"], "twice"),
    ],
)
def test_keys_ascend_across_calls_and_a_refused_call_changes_nothing(second, named):
    target = io.BytesIO()
    with SortedFileWriter(target, schema=pa.schema([]), block_size=1) as writer:
        writer.write([b"a", b"b"])
        with pytest.raises(InvalidArgumentError, match=named):
            writer.write(second)
        writer.write([b"c"])
    assert SortedFileReader(target.getvalue()).keys().to_pylist() == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.null(), pa.dictionary(pa.int8(), pa.string()),
     pa.decimal256(50, 2), pa.month_day_nano_interval(), pa.string_view(), pa.map_(pa.int8(), pa.int8())],
)  # fmt: skip
def test_other_value_types_are_refused_before_anything_is_written(kind, tmp_path):
    with pytest.raises(SchemaError, match="'x'"):
        SortedFileWriter(tmp_path / "f", schema=pa.schema([("x", kind)]))
    assert list(tmp_path.iterdir()) == []


def test_bad_arguments_are_named():
    schema = pa.schema([("n", pa.int64())])
    batch = pa.record_batch({"n": [1]})
    odd = [{"block_size": 0}, {"block_size": "big"}, {"compression": "lz4"}, {"use": "x"}]
    for options in (*odd, *({"partition_prefix_bytes": size} for size in (-1, True, "5", 1.0, None, 1 << 40))):
        with pytest.raises(InvalidArgumentError, match=next(iter(options))):
            SortedFileWriter(io.BytesIO(), schema=schema, **options)
    for bad in ([("key", pa.int8())], [("a", pa.int8()), ("a", pa.int8())]):
        with pytest.raises(SchemaError):
            SortedFileWriter(io.BytesIO(), schema=pa.schema(bad))
    for target in (7, io.StringIO()):
        with pytest.raises(InvalidArgumentError, match="binary file"):
            SortedFileWriter(target, schema=schema)
    writer = SortedFileWriter(io.BytesIO(), schema=schema)
    for keys, values, deleted in (
        ([None], batch, None),
        ([1], batch, None),
        (pa.array(["a"]), batch, None),
        ([b"a", b"b"], batch, None),
        ([b"a"], batch, [True, False]),
        ([b"a"], batch, [2]),
        ([b"a"], batch, pa.array([None], pa.bool_())),
        ([b"a"], {"n": [1]}, None),
        ([b"a" * (1 << 21)], batch, None),
    ):
        with pytest.raises(InvalidArgumentError):
            writer.write(keys, values, deleted)
    for values in (pa.record_batch({"m": [1]}), pa.record_batch({"n": ["1"]}), pa.record_batch({"n": [1], "m": [1]})):
        with pytest.raises(SchemaError):
            writer.write([b"a"], values)
    for data in (np.zeros((2, 3), np.uint8), np.zeros((2, 4), np.int8), [[0, 0, 0, 0]]):
        with pytest.raises(InvalidArgumentError):
            writer.write_rows("s", data, 4)
    writer.close()
    writer.close()
    with pytest.raises(InvalidArgumentError, match="closed"):
        writer.write([b"a"], batch)


def test_an_entry_that_no_block_could_hold_is_refused():
    with pytest.raises(InvalidArgumentError, match="32 MiB"):
        written([b"a"], pa.record_batch({"b": [bytes(33 << 20)]}))


def test_text_that_is_not_utf8_is_refused():
    offsets, data = pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, data])
    with pytest.raises(InvalidArgumentError, match="store it as binary"):
        written([b"a"], pa.record_batch({"s": text}))


def test_a_path_is_whole_or_absent(tmp_path):
    path = tmp_path / "f.skb"
    schema = pa.schema([])
    with pytest.raises(RuntimeError), SortedFileWriter(path, schema=schema) as writer:
        writer.write([b"a"])
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with SortedFileWriter(str(path), schema=schema) as writer:
        writer.write([b"a"])
        assert not path.exists()
    assert [p.name for p in tmp_path.iterdir()] == ["f.skb"]
    with pytest.raises(InvalidArgumentError), SortedFileWriter(path, schema=schema) as writer:
        writer.write([b"b", b"a"])
    with SortedFileReader(path) as reader:
        assert reader.keys().to_pylist() == [b"a"]
    writer = SortedFileWriter(path, schema=schema)
    with pytest.raises(InvalidArgumentError):
        writer.write_rows("s", iter([np.zeros((1, 4), np.uint8), np.zeros((1, 5), np.uint8)]), 4)
    assert [p.name for p in tmp_path.iterdir()] == ["f.skb"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_disk_that_refuses_leaves_nothing(tmp_path, monkeypatch, failing):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, refuse)
    with pytest.raises(StorageError, match="No space"), SortedFileWriter(tmp_path / "f", schema=pa.schema([])) as w:
        w.write([b"a"])
    assert list(tmp_path.iterdir()) == []


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(NotATableError, match="no such file"):
        SortedFileReader(tmp_path / "missing")
    with pytest.raises(NotATableError, match="not a file"):
        SortedFileReader(tmp_path)
    with pytest.raises(StorageError):
        SortedFileWriter(tmp_path / "missing" / "f", schema=pa.schema([]))
    with pytest.raises(InvalidArgumentError, match="int"):
        SortedFileReader(7)


def test_no_file_stays_open(tmp_path):
    path = tmp_path / "f.skb"
    path.write_bytes(numbered(10))
    before = len(os.listdir("/proc/self/fd"))
    SortedFileReader(path)
    reader = SortedFileReader(path)
    reader.close()
    reader.close()
    with pytest.raises(InvalidArgumentError, match="closed"):
        reader.get(b"a")
    path.write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="not that of a sorted-block file"):
        SortedFileReader(path)
    with pytest.raises(SchemaError):
        SortedFileWriter(path, schema=pa.schema([("x", pa.null())]))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_source_that_fails_is_a_storage_error():
    class Broken(CountingSource):
        def read_ranges(self, ranges):
            raise OSError("gone away")

    with pytest.raises(StorageError, match="gone away"):
        SortedFileReader(Broken(numbered(1)))


@pytest.mark.parametrize("taken_bytes", [7, 0, None])
def test_raw_files_that_write_a_part_or_nothing(taken_bytes):
    class Slow(io.RawIOBase):
        data = b""

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data)[: taken_bytes or 0]
            return taken_bytes

    target, keys = Slow(), [b"a" * 100, b"b" * 100]
    if not taken_bytes:
        with pytest.raises(StorageError, match="no more bytes"):
            SortedFileWriter(target, schema=pa.schema([]))
        return
    with SortedFileWriter(target, schema=pa.schema([])) as writer:
        writer.write(keys)
    assert SortedFileReader(target.data).keys().to_pylist() == keys


def test_odd_arguments_of_a_reader_are_refused():
    for size in (-5, "a", True):
        with pytest.raises(InvalidArgumentError, match="footer_read_bytes"):
            SortedFileReader(numbered(10), footer_read_bytes=size)
    for keys in ("abc", ["a"], (b"a", "b"), np.array(["a"]), iter("a")):
        with pytest.raises(InvalidArgumentError, match="text"):
            SortedFileReader(numbered(3)).get_many(keys)


def test_blocks_that_are_not_there_are_refused():
    reader = SortedFileReader(numbered(100, block_size=100, summaries=["n"]))
    count = reader.num_blocks
    for i in (-1, count, 10**9):
        with pytest.raises(InvalidArgumentError, match=f"blocks 0 to {count - 1}"):
            reader.read_blocks([i])
    for blocks in (range(-3, 4), range(count + 1), range(0, count, 2), [1]):
        for ask in (reader.blocks, lambda blocks: reader.zone_maps(["n"], blocks)):
            with pytest.raises(InvalidArgumentError, match="is no range"):
                ask(blocks)
    assert len(reader.zone_maps(["n"], range(2, 5))["n"].live) == 3
    assert len(reader.zone_maps(["n"], range(3, 2))["n"].live) == 0
