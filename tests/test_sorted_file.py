"""The sorted-block file, round trips and look-ups, against a sorted dict."""

import datetime as dt
import decimal
import io
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.errors import InvalidArgumentError, NotATableError, SchemaError, StorageError
from skipstone.hfile_like import (
    BytesSource,
    SortedFileReader,
    SortedFileWriter,
    prefix_successor,
    read_block_range,
    read_strided_rows,
)
from skipstone.hfile_like.block import Block

TYPES = {
    "i8": (pa.int8(), st.integers(-128, 127)),
    "u64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "i32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "f32": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "f64": (pa.float64(), st.floats(allow_nan=False)),
    "flag": (pa.bool_(), st.booleans()),
    "dec": (pa.decimal128(20, 3), st.integers(-(10**19), 10**19).map(lambda i: decimal.Decimal(i).scaleb(-3))),
    "d32": (pa.date32(), st.dates()),
    "d64": (pa.date64(), st.dates()),
    "t32": (pa.time32("s"), st.integers(0, 86399).map(lambda s: dt.time(s // 3600, s // 60 % 60, s % 60))),
    "t64": (pa.time64("us"), st.times()),
    "ts": (pa.timestamp("us"), st.datetimes()),
    "tz": (
        pa.timestamp("ms", "Europe/Paris"),
        st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(2100, 1, 1)).map(
            lambda d: d.replace(microsecond=d.microsecond // 1000 * 1000, tzinfo=dt.UTC)
        ),
    ),
    "dur": (pa.duration("us"), st.integers(-(2**50), 2**50).map(lambda i: dt.timedelta(microseconds=i))),
    "text": (pa.string(), st.text(max_size=12)),
    "ltext": (pa.large_string(), st.text(max_size=12)),
    "bin": (pa.binary(), st.binary(max_size=12)),
    "lbin": (pa.large_binary(), st.binary(max_size=12)),
    "fix": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "nofix": (pa.binary(0), st.just(b"")),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in TYPES.items()])
KEYS = st.one_of(
    st.binary(max_size=6), st.text("ab\0/", max_size=8).map(str.encode), st.integers(0, 40).map(b"k%03d".__mod__)
)
ROW = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in TYPES.items()})


def written(keys, values, deleted=None, schema=None, **options) -> bytes:
    target = io.BytesIO()
    with SortedFileWriter(target, schema=schema if schema is not None else values.schema, **options) as writer:
        writer.write(keys, values, deleted)
    assert writer.size_bytes == len(target.getvalue())
    return target.getvalue()


def numbered(count, **options) -> bytes:
    """Keys k00000, k00001, ... with their numbers."""
    return written([b"k%05d" % i for i in range(count)], pa.record_batch({"n": pa.array(range(count))}), **options)


def rows_of(table: pa.Table) -> dict:
    return {row.pop("key"): row for row in table.to_pylist()}


@settings(max_examples=60, deadline=None)
@given(
    entries=st.dictionaries(KEYS, ROW, max_size=30),
    block_size=st.integers(1, 400) | st.just("auto"),
    compression=st.sampled_from(["auto", "none"]),
    calls=st.integers(1, 4),
)
def test_every_type_comes_back(entries, block_size, compression, calls):
    oracle = dict(sorted(entries.items()))
    batch = pa.RecordBatch.from_pylist(list(oracle.values()), schema=SCHEMA)
    keys = list(oracle)
    target = io.BytesIO()
    with SortedFileWriter(target, schema=SCHEMA, block_size=block_size, compression=compression) as writer:
        for part in np.array_split(np.arange(len(keys)), calls):
            low, size = (int(part[0]), len(part)) if len(part) else (0, 0)
            writer.write(keys[low : low + size], batch.slice(low, size))
    with SortedFileReader(target.getvalue()) as reader:
        assert reader.verify() == []
        assert reader.num_entries == len(oracle)
        expected = pa.Table.from_batches([batch], SCHEMA)
        assert reader.scan_table().drop_columns("key").equals(expected)
        assert reader.keys().to_pylist() == keys
        for key, row in zip(keys, batch.to_pylist(), strict=True):
            assert reader.get(key) == row
        assert reader.get(b"\xffabsent") is None


def test_nan_and_signed_zero_keep_their_bits():
    values = np.array([np.nan, -0.0, 0.0, np.inf, -np.inf])
    batch = pa.record_batch({"x": pa.array(values, from_pandas=False)})
    found = SortedFileReader(written([b"%d" % i for i in range(5)], batch)).scan_table()["x"].to_numpy()
    assert found.tobytes() == values.tobytes()


@settings(max_examples=60, deadline=None)
@given(
    keys=st.sets(st.one_of(KEYS, st.binary(min_size=20, max_size=20), st.binary(max_size=300)), max_size=80),
    probes=st.lists(KEYS, max_size=20),
    bounds=st.tuples(KEYS, KEYS),
    block_size=st.integers(1, 500),
    data=st.data(),
)
def test_lookups_and_scans_agree_with_a_dict(keys, probes, bounds, block_size, data):
    ordered = sorted(keys)
    flags = data.draw(st.lists(st.booleans(), min_size=len(ordered), max_size=len(ordered)))
    batch = pa.record_batch({"n": pa.array(range(len(ordered)), pa.int32())})
    reader = SortedFileReader(written(ordered, batch, flags, block_size=block_size))
    live = {k: n for n, (k, gone) in enumerate(zip(ordered, flags, strict=True)) if not gone}
    everything = {k: (n, gone) for n, (k, gone) in enumerate(zip(ordered, flags, strict=True))}
    for probe in [*probes, *ordered[:10]]:
        assert reader.get(probe) == ({"n": live[probe]} if probe in live else None)
    wanted = [*probes, *ordered, *probes]
    many = reader.get_many(wanted)
    assert many["key"].to_pylist() == wanted
    assert many["found"].to_pylist() == [k in live for k in wanted]
    assert many["n"].to_pylist() == [live.get(k) for k in wanted]
    told = reader.get_many(wanted, include_deleted=True)
    assert told["found"].to_pylist() == [k in everything for k in wanted]
    assert told["deleted"].to_pylist() == [k in everything and everything[k][1] for k in wanted]
    start, stop = bounds
    assert rows_of(reader.scan_table(start=start, stop=stop)) == {
        k: {"n": n} for k, n in live.items() if start <= k < stop
    }
    prefix = start[:2]
    assert rows_of(reader.scan_table(prefix)) == {k: {"n": n} for k, n in live.items() if k.startswith(prefix)}
    both = reader.scan_table(prefix, start=start, stop=stop, include_deleted=True)
    assert rows_of(both) == {
        k: {"n": n, "deleted": gone}
        for k, (n, gone) in everything.items()
        if k.startswith(prefix) and start <= k < stop
    }
    assert reader.num_deleted == sum(flags)


def test_odd_keys():
    keys = sorted([b"", b"\0", b"\0\0", b"\xff" * 70_000, b"a" * 65_536, b"a" * 65_536 + b"\0", b"\xff" * 70_001, b"b"])
    for block_size in (1, 100_000, "auto"):
        reader = SortedFileReader(written(keys, pa.record_batch({"n": pa.array(range(8))}), block_size=block_size))
        assert reader.keys().to_pylist() == keys
        assert [reader.get(k)["n"] for k in keys] == list(range(8))
        assert reader.keys(b"\xff").to_pylist() == keys[-2:]
        assert reader.get(b"\0\0\0") is None


def test_prefix_successor():
    assert prefix_successor(b"a") == b"b"
    assert prefix_successor(b"a\xff\xff") == b"b"
    assert prefix_successor(b"\xff") is None
    assert prefix_successor(b"") is None


def test_an_empty_file_opens():
    reader = SortedFileReader(written([], None, schema=SCHEMA))
    assert reader.num_entries == 0
    assert reader.get(b"") is None
    assert reader.scan_table().num_rows == 0
    assert reader.scan_table().schema.names == ["key", *SCHEMA.names]
    assert reader.get_many([b"a"])["found"].to_pylist() == [False]
    assert reader.blocks() == []
    assert reader.verify() == []


def test_keys_without_values():
    reader = SortedFileReader(written([b"a", b"b"], None, schema=pa.schema([])))
    assert reader.get(b"a") == {}
    assert reader.keys().to_pylist() == [b"a", b"b"]


def test_an_all_null_column_takes_no_bytes():
    keys = [b"%06d" % i for i in range(1000)]
    without = written(keys, None, schema=pa.schema([("n", pa.int64())]), block_size=1 << 20)
    more = written(keys, None, schema=pa.schema([("n", pa.int64()), ("m", pa.decimal128(38, 2))]), block_size=1 << 20)
    # One directory entry and one field of the schema.
    assert len(more) - len(without) < 150


def test_keys_come_as_arrays_lists_chunks_and_large_or_fixed_binary():
    batch = pa.table({"n": pa.chunked_array([[1], [], [2, 3]])})
    listed = [b"aa", b"bb", b"cc"]
    for keys in (
        listed,
        pa.array(listed),
        pa.array(listed, pa.large_binary()),
        pa.array(listed, pa.binary(2)),
        pa.chunked_array([listed[:2], listed[2:]]),
        pa.array([b"x", *listed])[1:],
    ):
        assert rows_of(SortedFileReader(written(keys, batch)).scan_table()) == {
            b"aa": {"n": 1},
            b"bb": {"n": 2},
            b"cc": {"n": 3},
        }


def test_columns_are_matched_by_name():
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    data = written([b"k"], pa.record_batch({"b": ["x"], "a": [1]}), schema=schema)
    reader = SortedFileReader(data)
    assert reader.get(b"k") == {"a": 1, "b": "x"}
    assert reader.scan_table(columns=["b", "a"]).schema.names == ["key", "b", "a"]
    assert reader.scan_table(columns=[]).schema.names == ["key"]
    with pytest.raises(SchemaError, match="no value column 'c'"):
        reader.scan(columns=["c"])


def test_a_slice_of_the_callers_memory_is_copied_before_it_changes():
    numbers = np.arange(4)
    target = io.BytesIO()
    with SortedFileWriter(target, schema=pa.schema([("n", pa.int64())])) as writer:
        writer.write([b"a", b"b", b"c", b"d"], pa.record_batch({"n": pa.array(numbers)}))
        numbers[:] = 9
    assert SortedFileReader(target.getvalue()).scan_table()["n"].to_pylist() == [0, 1, 2, 3]


def test_blocks_hold_about_what_was_asked():
    data = numbered(10_000, block_size=4096)
    blocks = SortedFileReader(data).blocks()
    sizes = [b.entries * 15 for b in blocks]
    assert all(4096 <= s <= 4096 + 15 for s in sizes[:-1])
    assert blocks[0].first_key == b"k00000" and blocks[-1].last_key == b"k09999"
    assert sum(b.entries for b in blocks) == 10_000
    many = SortedFileReader(numbered(500, block_size=1)).blocks()
    assert [b.entries for b in many] == [1] * 500


# -- groups, metas, strided sections ----------------------------------------------------------------------------------


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


def test_a_name_is_taken_once_and_a_group_is_one_range():
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
    writer.write_strided("s", np.zeros((1, 1), np.uint8), 1)
    writer.write([b"c"])
    with pytest.raises(InvalidArgumentError, match="one range"):
        writer.end_group("h")
    writer.abort()


def test_metas_and_properties():
    target = io.BytesIO()
    with SortedFileWriter(target, schema=pa.schema([]), properties={"a": "1", "ü": ""}) as writer:
        writer.put_meta("long", b"abc" * 10_000)
        writer.put_meta("empty", b"")
        writer.put_meta("random", os.urandom(999))
    reader = SortedFileReader(target.getvalue())
    assert reader.properties == {"a": "1", "ü": ""}
    assert reader.metas() == ["long", "empty", "random"]
    assert reader.meta("long") == b"abc" * 10_000
    assert reader.meta("empty") == b""
    assert len(reader.meta("random")) == 999
    assert len(target.getvalue()) < 2500
    with pytest.raises(InvalidArgumentError, match="no meta 'x'"):
        reader.meta("x")


class CountingSource:
    """Counts requests and bytes."""

    def __init__(self, data: bytes):
        self.data, self.size, self.asked = data, len(data), []

    def read_ranges(self, ranges):
        self.asked += ranges
        return [self.data[o : o + n] for o, n in ranges]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 60),
    stride=st.integers(1, 40),
    chunks=st.integers(1, 4),
    picks=st.lists(st.integers(0, 59), max_size=20),
    gap=st.sampled_from([0, 50, 10_000]),
)
def test_strided_rows_need_only_their_section(rows, stride, chunks, picks, gap):
    table = np.random.default_rng(rows * 41 + stride).integers(0, 256, (rows, stride), dtype=np.uint8)
    target = io.BytesIO()
    with SortedFileWriter(target, schema=pa.schema([])) as writer:
        writer.write([b"a"])
        section = writer.write_strided("rows", iter(np.array_split(table, chunks)), stride)
        writer.write_strided("other", np.empty((0, 3), np.uint8), 3)
    picks = [p for p in picks if p < rows]
    source = CountingSource(target.getvalue())
    section = pickle.loads(pickle.dumps(section))
    found = read_strided_rows(source, section, picks, gap_bytes=gap)
    assert found.dtype == np.uint8 and found.shape == (len(picks), stride)
    assert np.array_equal(found, table[picks])
    if gap == 0:
        assert sum(n for _, n in source.asked) == len(set(picks)) * (stride + 4)
    reader = SortedFileReader(target.getvalue())
    assert reader.strided("rows") == section
    assert np.array_equal(reader.read_strided("rows", np.array(picks, dtype=np.int64)), table[picks])
    assert reader.strided("other").rows == 0
    assert reader.verify() == []
    for bad in ([rows], [-1], [0.5], [[0]]):
        with pytest.raises(InvalidArgumentError):
            read_strided_rows(source, section, bad)


def test_neighbouring_rows_are_one_request():
    target = io.BytesIO()
    with SortedFileWriter(target, schema=pa.schema([])) as writer:
        section = writer.write_strided("rows", np.zeros((10_000, 28), np.uint8), 28)
    source = CountingSource(target.getvalue())
    read_strided_rows(source, section, [5, 7, 9_000])
    assert source.asked == [(section.offset + 5 * 32, 3 * 32), (section.offset + 9_000 * 32, 32)]


# -- how much is read -------------------------------------------------------------------------------------------------


def test_a_file_opens_with_one_read_of_its_tail():
    source = CountingSource(numbered(20_000, block_size=8192, compression="none"))
    reader = SortedFileReader(source)
    assert source.asked == [(source.size - 64 * 1024, 64 * 1024)]
    source.asked.clear()
    assert reader.get(b"k00007") == {"n": 7}
    first = reader.blocks()[0]
    assert source.asked == [(first.offset, first.length)]
    source.asked.clear()
    assert reader.get(b"a") is None and reader.get(b"k00007\0") is None
    assert len(source.asked) == 1
    source.asked.clear()
    reader.scan_table(b"k000")
    assert len(source.asked) == 1


def test_a_footer_longer_than_the_tail_takes_a_second_read():
    source = CountingSource(numbered(3000, block_size=1, compression="none"))
    reader = SortedFileReader(source, tail_bytes=4096)
    assert len(source.asked) == 2
    assert sum(n for _, n in source.asked) < source.size
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


def test_a_scan_decodes_only_the_columns_it_returns(monkeypatch):
    batch = pa.record_batch({"a": [1, 2], "b": [3, 4], "c": [5, 6]})
    reader = SortedFileReader(written([b"x", b"y"], batch))
    decoded = []
    whole = Block.column
    monkeypatch.setattr(Block, "column", lambda self, at: decoded.append(at) or whole(self, at))
    assert reader.scan_table(columns=["c", "a"]).to_pydict() == {"key": [b"x", b"y"], "c": [5, 6], "a": [1, 2]}
    assert decoded == [2, 0]


def test_uncompressed_values_are_not_copied():
    data = numbered(1000, compression="none", block_size=1 << 20)
    address = pa.py_buffer(data).address
    values = SortedFileReader(data).scan_table()["n"].chunk(0)
    assert address <= values.buffers()[1].address < address + len(data)


def test_reading_imports_neither_numba_nor_pandas(tmp_path):
    path = tmp_path / "f.skb"
    values = pa.record_batch({"t": pa.array([1, None, 3] * 30, pa.timestamp("us")), "s": ["x", None, "y"] * 30})
    path.write_bytes(
        written([b"k%05d" % i + b"x" * (i % 3) for i in range(90)], values, [i % 5 == 0 for i in range(90)])
    )
    code = """
import sys
from skipstone.hfile_like import SortedFileReader
with SortedFileReader(sys.argv[1]) as reader:
    assert reader.get(b"k00003")["s"] == "x"
    wanted = [b"k00003", b"k", *(b"k%05d" % i for i in range(9))]
    assert reader.get_many(wanted)["found"].to_pylist()[:2] == [True, False]
    assert reader.scan_table(b"k0000", include_deleted=True).num_rows == 10
    assert reader.scan_table(start=b"k00003").num_rows == 70
    assert reader.keys().to_pylist()[0] == b"k00001x"
print(*sorted({"numba", "pandas"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


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


# -- refusals ---------------------------------------------------------------------------------------------------------


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
    for options in (
        {"block_size": 0},
        {"block_size": "big"},
        {"compression": "lz4"},
        {"use": "x"},
        {"properties": {"a": 1}},
    ):
        with pytest.raises(InvalidArgumentError):
            SortedFileWriter(io.BytesIO(), schema=schema, **options)
    for bad in ([("key", pa.int8())], [("a", pa.int8()), ("a", pa.int8())]):
        with pytest.raises(SchemaError):
            SortedFileWriter(io.BytesIO(), schema=pa.schema(bad))
    with pytest.raises(InvalidArgumentError):
        SortedFileWriter(7, schema=schema)
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
            writer.write_strided("s", data, 4)
    writer.close()
    writer.close()
    with pytest.raises(InvalidArgumentError, match="closed"):
        writer.write([b"a"], batch)


def test_an_entry_that_no_block_could_hold_is_refused():
    with pytest.raises(InvalidArgumentError, match="64 MiB"):
        written([b"a"], pa.record_batch({"b": [bytes(65 << 20)]}))


def test_text_that_is_not_utf8_is_refused():
    offsets, data = pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, data])
    with pytest.raises(InvalidArgumentError, match="store it as binary"):
        written([b"a"], pa.record_batch({"s": text}))


def test_a_value_beyond_python_comes_as_a_scalar():
    far = pa.array([10**18], pa.timestamp("us"))
    assert SortedFileReader(written([b"a"], pa.record_batch({"t": far}))).get(b"a") == {"t": far[0]}


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
        writer.write_strided("s", iter([np.zeros((1, 4), np.uint8), np.zeros((1, 5), np.uint8)]), 4)
    assert [p.name for p in tmp_path.iterdir()] == ["f.skb"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_disk_that_refuses_leaves_nothing(tmp_path, monkeypatch, failing):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, refuse)
    with (
        pytest.raises(StorageError, match="No space left"),
        SortedFileWriter(tmp_path / "f", schema=pa.schema([])) as w,
    ):
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


def test_raw_files_that_take_part_of_a_write():
    class Slow(io.RawIOBase):
        def __init__(self):
            self.data = bytearray()

        def writable(self):
            return True

        def write(self, data):
            taken = bytes(data)[:7]
            self.data += taken
            return len(taken)

    target = Slow()
    with SortedFileWriter(target, schema=pa.schema([])) as writer:
        writer.write([b"a" * 100, b"b" * 100])
    assert SortedFileReader(bytes(target.data)).keys().to_pylist() == [b"a" * 100, b"b" * 100]
