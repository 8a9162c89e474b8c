"""The sorted-block file, round trips and look-ups, against a sorted dict."""

import datetime as dt
import decimal
import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.errors import SchemaError
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, prefix_successor
from sorted_file_builders import written

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


# Keys of one form, each of which suits one encoding.
FORMS = [
    st.binary(min_size=20, max_size=20),
    st.integers(0, 2**64 - 1).map(lambda n: n.to_bytes(8, "big")),
    st.builds(lambda n, word: n.to_bytes(4, "big") + b"\0\x01" + word, st.integers(0, 999), st.binary(max_size=9)),
    st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.sampled_from([0, 1, 255, 256, 65_536])),
]


def rows_of(table: pa.Table) -> dict:
    return {row.pop("key"): row for row in table.to_pylist()}


@settings(max_examples=examples(20))
@given(
    entries=st.dictionaries(KEYS, ROW, max_size=30),
    calls=st.integers(1, 4),
    options=st.fixed_dictionaries(
        {
            "block_size": st.integers(1, 400) | st.just("auto"),
            "compression": st.sampled_from(["auto", "none"]),
            "partition_prefix_bytes": st.integers(0, 2),
            "templates": st.booleans(),
        }
    ),
)
def test_every_type_comes_back(entries, calls, options):
    """Whether the writer copies what it is given, or the caller keeps it unchanged: the bytes are the same."""
    oracle = dict(sorted(entries.items()))
    batch = pa.RecordBatch.from_pylist(list(oracle.values()), schema=SCHEMA)
    keys, files = list(oracle), []
    parts = [(int(part[0]), len(part)) for part in np.array_split(np.arange(len(keys)), calls) if len(part)]
    for copy in (True, False):
        target = io.BytesIO()
        with SortedFileWriter(target, schema=SCHEMA, **options) as writer:
            for low, size in parts:
                writer.write(pa.array(keys[low : low + size], pa.binary()), batch.slice(low, size), copy=copy)
        files.append(target.getvalue())
    assert files[0] == files[1]
    with SortedFileReader(files[0]) as reader:
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


@settings(max_examples=examples(13))
@given(
    keys=st.one_of(st.sets(st.one_of(KEYS, *FORMS, st.binary(max_size=300)), max_size=80), *map(st.sets, FORMS)),
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
    many = reader.get_many(wanted, include_deleted=True)
    assert many["found"].to_pylist() == [k in everything for k in wanted]
    assert many["deleted"].to_pylist() == [k in everything and everything[k][1] for k in wanted]
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
    assert not ordered or reader.ends() == (ordered[0], ordered[-1])


def test_prefix_successor():
    assert prefix_successor(b"a") == b"b"
    assert prefix_successor(b"a\xff\xff") == b"b"
    assert prefix_successor(b"\xff") is None
    assert prefix_successor(b"") is None


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


COLORS = ["red", "green", "blue"]


def test_a_cold_get_enters_at_most_nine_files(tmp_path):
    """These files show how a key is found. A column of names of one form enters `templates` as well."""
    keys = [b"key-%06d" % (number * number) for number in range(1_000)]
    values = pa.record_batch({"size": list(range(1_000)), "color": [COLORS[number % 3] for number in range(1_000)]})
    with SortedFileWriter(tmp_path / "file.sbf", schema=values.schema) as writer:
        writer.write(keys, values)
    files = set()
    with SortedFileReader(tmp_path / "file.sbf") as reader:
        sys.setprofile(lambda frame, event, argument: files.add(frame.f_code.co_filename))
        try:
            found = reader.get(keys[77])
        finally:
            sys.setprofile(None)
    assert found == {"size": 77, "color": COLORS[77 % 3]}
    root = Path(__file__).parents[2]
    ours = {
        path
        for path in (Path(file).resolve() for file in files if file.endswith(".py"))
        if root in path.parents and not {"tests", "site-packages"} & set(path.parts)
    }
    assert 5 < len(ours) <= 9, sorted(ours)
