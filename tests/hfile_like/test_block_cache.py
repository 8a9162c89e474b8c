"""Blocks that are held between look-ups: the same answers, within bounds, for any number of threads."""

from __future__ import annotations

import decimal
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.errors import CorruptionError, InvalidArgumentError
from skipstone.hfile_like import PathSource, SortedFileReader
from sorted_file_builders import CountingSource, numbered, written

NAMES = st.integers(0, 600).map(lambda i: f"day={i % 7}/{i * 2654435761 % 2**32:08x}-{i}.parquet".encode())
KEYS = st.one_of(st.binary(max_size=6), st.text("ab\0/", max_size=12).map(str.encode), NAMES)
VALUES = {
    "n": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "u": (pa.uint16(), st.integers(0, 2**16 - 1)),
    "f": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "flag": (pa.bool_(), st.booleans()),
    "day": (pa.date32(), st.dates()),
    "text": (pa.string(), st.sampled_from(["", "x", "some more"]) | st.text(max_size=12)),
    "large": (pa.large_binary(), st.binary(max_size=9)),
    "fix": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "dec": (pa.decimal128(9, 2), st.integers(0, 10**6).map(lambda i: decimal.Decimal(i).scaleb(-2))),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
ROW = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in VALUES.items()})


@given(
    entries=st.dictionaries(KEYS, ROW, max_size=60),
    others=st.lists(KEYS, max_size=10),
    block_size=st.integers(1, 3000),
    cache_bytes=st.sampled_from([0, 3000, 20_000, 1 << 24]),
    columns=st.none() | st.lists(st.sampled_from(list(VALUES)), unique=True),
    data=st.data(),
)
def test_a_cache_changes_no_answer(entries, others, block_size, cache_bytes, columns, data):
    keys = sorted(entries)
    gone = set(data.draw(st.lists(st.sampled_from(keys), max_size=5))) if entries else set()
    batch = pa.RecordBatch.from_pylist([entries[key] for key in keys], schema=SCHEMA)
    stored = written(keys, batch, [key in gone for key in keys], block_size=block_size)
    plain, reader = SortedFileReader(stored, cache_bytes=0), SortedFileReader(stored, cache_bytes=cache_bytes)
    probes = st.lists(st.sampled_from([*keys, *others, b"?"]), max_size=40)
    for _ in range(data.draw(st.integers(1, 4))):
        wanted = data.draw(probes)
        for key in wanted[:10]:
            assert reader.get(key) == (entries[key] if key in entries and key not in gone else None)
        for deleted in (False, True):
            found = reader.get_many(wanted, columns, deleted)
            found.validate(full=True)
            assert found.equals(plain.get_many(wanted, columns, deleted))
        assert cache_bytes == 0 or reader.file.cache.size_bytes <= cache_bytes


def test_a_get_in_a_loop_reads_each_block_once():
    source = CountingSource(numbered(20_000, block_size=8192))
    reader = SortedFileReader(source)
    for _ in range(3):
        assert [reader.get(b"k%05d" % i)["n"] for i in range(0, 20_000, 7)] == list(range(0, 20_000, 7))
    assert len(source.asked) <= 1 + reader.num_blocks
    source.asked.clear()
    assert reader.get_many([b"k%05d" % i for i in range(0, 20_000, 7)])["found"].to_pylist() == [True] * 2858
    assert source.asked == []


def test_what_is_used_last_stays():
    source = CountingSource(numbered(3000, block_size=1000))
    reader = SortedFileReader(source, tail_bytes=4096, cache_bytes=20_000)
    for i in range(0, 2000, 10):
        assert reader.get(b"k00000") == {"n": 0} and reader.get(b"k%05d" % i) == {"n": i}
    first = reader.blocks()[0]
    assert source.asked.count((first.offset, first.length)) == 1
    source.asked.clear()
    assert reader.get_many([b"k%05d" % i for i in range(0, 3000, 10)])["found"].to_pylist() == [True] * 300
    assert reader.get(b"k00000") == {"n": 0}, "a look-up all over the file pushes out nothing"
    assert (first.offset, first.length) not in source.asked


def test_damage_is_not_held():
    data = bytearray(numbered(3000, block_size=1000))
    block = SortedFileReader(bytes(data)).blocks()[1]
    source = CountingSource(bytes(data))
    reader = SortedFileReader(source, tail_bytes=4096)
    at = block.offset + block.length - 9
    damaged = bytearray(data)
    damaged[at] ^= 1
    source.data = bytes(damaged)
    for _ in range(2):
        with pytest.raises(CorruptionError):
            reader.get(block.last_key)
        with pytest.raises(CorruptionError):
            reader.get_many([block.last_key])
    assert reader.get(block.first_key + b"?") is None, "keys are sound"
    with pytest.raises(CorruptionError):
        reader.get(block.last_key)
    source.data = bytes(data)
    assert reader.get(block.last_key) is not None


def test_threads_share_a_cache(tmp_path):
    path = tmp_path / "f.skb"
    path.write_bytes(numbered(5000, block_size=1000))
    failures = []
    with SortedFileReader(path, cache_bytes=30_000) as reader:

        def work(seed):
            for i in np.random.default_rng(seed).integers(0, 5000, 200).tolist():
                if reader.get(b"k%05d" % i) != {"n": i}:
                    failures.append(i)
            if reader.file.cache.size_bytes > 30_000:
                failures.append("size")

        threads = [threading.Thread(target=work, args=(s,)) for s in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_every_source_reads_the_same(tmp_path):
    keys = sorted({b"k%07d" % (i * 7919 % 100_003) for i in range(3000)})
    batch = pa.record_batch({"n": range(len(keys)), "s": [f"value {i % 11}" for i in range(len(keys))]})
    stored = written(keys, batch, block_size=4000)
    path = tmp_path / "f.skb"
    path.write_bytes(stored)
    for source in (stored, path, PathSource(str(path)), memoryview(stored), CountingSource(stored)):
        with SortedFileReader(source) as reader:
            for _ in range(2):
                assert reader.scan_table()["n"].to_pylist() == list(range(len(keys)))
                assert reader.get_many([*keys[::3], b"absent"])["n"].to_pylist() == [*range(len(keys))[::3], None]
                assert [reader.get(key)["n"] for key in keys[::50]] == [*range(len(keys))[::50]]
            assert reader.verify() == []
        with pytest.raises(InvalidArgumentError, match="closed"):
            reader.get(keys[0])
