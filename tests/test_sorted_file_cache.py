"""Reading by way of a cache of blocks: the same answers, within bounds, from any source and any thread."""

from __future__ import annotations

import decimal
import gc
import os
import threading
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.errors import CorruptionError, InvalidArgumentError, NotATableError
from skipstone.hfile_like import BlockCache, MmapSource, PathSource, SortedFileReader, kernels_lookup, lookups
from skipstone.hfile_like.dictionary import train
from sorted_files import CountingSource, numbered, written

NAMES = st.integers(0, 600).map(lambda i: f"day={i % 7}/{i * 2654435761 % 2**32:08x}-{i}.parquet".encode())
KEYS = st.one_of(st.binary(max_size=6), st.text("ab\0/", max_size=12).map(str.encode), NAMES)
VALUES = {
    "n": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
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


@pytest.fixture(params=["plain", "compiled"])
def kernels(request, monkeypatch):
    """Look-ups of many keys by the plain twin, or by kernels however few they are."""
    found = kernels_lookup if request.param == "compiled" else None
    monkeypatch.setattr(lookups, "KERNEL_KEYS_LEAST", 0)
    monkeypatch.setattr(lookups, "kernels_for", lambda family, plain_ns: found)


def made(entries: dict, gone: set, block_size: int) -> bytes:
    batch = pa.RecordBatch.from_pylist([entries[key] for key in sorted(entries)], schema=SCHEMA)
    return written(sorted(entries), batch, [key in gone for key in sorted(entries)], block_size=block_size)


@given(
    entries=st.dictionaries(KEYS, ROW, max_size=60),
    others=st.lists(KEYS, max_size=10),
    block_size=st.integers(1, 3000),
    max_bytes=st.sampled_from([0, 3000, 20_000, 1 << 24]),
    columns=st.none() | st.lists(st.sampled_from(list(VALUES)), unique=True),
    data=st.data(),
)
@pytest.mark.usefixtures("kernels")
def test_a_cache_changes_no_answer(entries, others, block_size, max_bytes, columns, data):
    gone = set(data.draw(st.lists(st.sampled_from(sorted(entries)), max_size=5))) if entries else set()
    stored = made(entries, gone, block_size)
    plain, cache = SortedFileReader(stored), BlockCache(max_bytes)
    reader = SortedFileReader(stored, cache=cache)
    probes = st.lists(st.sampled_from([*sorted(entries), *others, b"?"]), max_size=40)
    for _ in range(data.draw(st.integers(1, 4))):
        wanted = data.draw(probes)
        for key in wanted[:10]:
            row = entries[key] if key in entries and key not in gone else None
            assert reader.get(key) == row
        for deleted in (False, True):
            found = reader.get_many(wanted, columns, deleted)
            found.validate(full=True)
            assert found.equals(plain.get_many(wanted, columns, deleted))
            low, high = sorted(data.draw(st.tuples(KEYS, KEYS)))
            scanned = reader.scan_table(start=low, stop=high, columns=columns, include_deleted=deleted)
            expected = plain.scan_table(start=low, stop=high, columns=columns, include_deleted=deleted)
            assert scanned.equals(expected)
        assert cache.held_bytes <= max_bytes
    reader.close()
    assert cache.held_blocks == 0 and cache.held_bytes in (0, cache.held_bytes * (reader.num_blocks > 0))


def sources(tmp_path, stored: bytes) -> dict:
    path = tmp_path / "f.skb"
    path.write_bytes(stored)
    mapped, opened = MmapSource(path), PathSource(str(path))
    ranged = CountingSource(stored)
    return {"bytes": stored, "path": path, "open": opened, "mmap": mapped, "view": memoryview(stored), "ranges": ranged}


@pytest.mark.parametrize("max_bytes", [None, 5_000, 1 << 24])
@pytest.mark.usefixtures("kernels")
def test_every_source_reads_the_same(tmp_path, max_bytes):
    keys = sorted({b"k%07d" % (i * 7919 % 100_003) for i in range(3000)})
    batch = pa.record_batch({"n": range(len(keys)), "s": [f"value {i % 11}" for i in range(len(keys))]})
    stored = written(keys, batch, block_size=4000)
    expected = SortedFileReader(stored).scan_table()
    wanted = [*keys[::3], b"absent", *keys[:5]]
    for name, source in sources(tmp_path, stored).items():
        with SortedFileReader(source, cache=None if max_bytes is None else BlockCache(max_bytes)) as reader:
            for _ in range(2):
                assert reader.scan_table().equals(expected), name
                assert reader.scan_table(keys[7][:4]).num_rows == sum(key.startswith(keys[7][:4]) for key in keys)
                assert reader.get_many(wanted)["n"].to_pylist() == [*range(len(keys))[::3], None, *range(5)], name
                assert [reader.get(key)["n"] for key in keys[::50]] == [*range(len(keys))[::50]], name
            assert reader.verify() == [], name
        with pytest.raises(InvalidArgumentError, match="closed"):
            reader.get(keys[0])


@pytest.mark.usefixtures("kernels")
def test_keys_are_sought_through_the_levels_of_an_index():
    keys = sorted({b"day=%02d/%06x" % (i % 31, i * 2654435761 % 2**24) for i in range(12_000)})
    stored = written(keys, pa.record_batch({"n": range(len(keys))}), block_size=150)
    reader = SortedFileReader(stored, cache=BlockCache(1 << 24))
    assert reader.num_blocks > 1_000
    random = np.random.default_rng(3)
    places = dict(zip(keys, range(len(keys)), strict=True))
    for _ in range(3):
        known = [keys[i] for i in random.integers(0, len(keys), 300).tolist()]
        near = [key[: int(random.integers(0, len(key)))] + bytes([int(random.integers(0, 256))]) for key in known]
        wanted = [*known, *near, b"", b"a", b"z", b"day=05/", b"day=05", *(key + b"0" for key in known[:50])]
        random.shuffle(wanted)
        assert reader.get_many(wanted)["n"].to_pylist() == [places.get(key) for key in wanted]


def test_a_block_is_read_once(tmp_path):
    source = CountingSource(numbered(4000, block_size=4000))
    cache = BlockCache(1 << 22)
    reader = SortedFileReader(source, cache=cache, tail_bytes=100)
    del source.asked[:]
    for _ in range(6):
        assert reader.get(b"k00007") == {"n": 7}
        assert reader.get_many([b"k00007", b"k00009"])["n"].to_pylist() == [7, 9]
        assert reader.scan_table(b"k0000")["n"].to_pylist() == list(range(10))
    assert len(source.asked) == 1
    assert (cache.misses, cache.hits, cache.evictions, cache.held_blocks) == (1, 17, 0, 1)
    cache.clear()
    assert cache.held_blocks == 0
    assert cache.held_bytes < 32 * reader.num_blocks  # where kernels were asked, the file's table of addresses
    assert reader.get(b"k00007") == {"n": 7}
    assert len(source.asked) == 2 and cache.misses == 2


def test_readers_of_one_file_share_its_blocks(tmp_path):
    path = tmp_path / "f.skb"
    path.write_bytes(numbered(4000, block_size=4000))
    cache = BlockCache(1 << 22)
    for opened in (str(path), str(path), MmapSource(str(path))):
        with SortedFileReader(opened, cache=cache, tail_bytes=100) as reader:
            assert reader.get(b"k00007") == {"n": 7}
    assert (cache.misses, cache.hits) == (1, 2)


def test_a_file_that_was_overwritten_is_another(tmp_path):
    path, cache = tmp_path / "f.skb", BlockCache(1 << 22)
    for first in (0, 1, 2):
        batch = pa.record_batch({"n": range(first, first + 3000)})
        path.write_bytes(written([b"k%05d" % i for i in range(3000)], batch, block_size=4000))
        os.utime(path, ns=(1, 1))  # the same time, and as long
        with SortedFileReader(path, cache=cache) as reader:
            assert reader.get(b"k00007") == {"n": 7 + first}


def test_what_only_one_reader_knows_goes_with_it():
    cache = BlockCache(1 << 22)
    with SortedFileReader(numbered(3000), cache=cache) as reader:
        assert reader.get(b"k00007") == {"n": 7}
        assert cache.held_blocks == 1
    assert (cache.held_blocks, cache.held_bytes) == (0, 0)


def test_what_is_looked_up_again_outlives_what_is_not():
    stored = numbered(30_000, block_size=2000)
    cache = BlockCache(60_000)
    reader = SortedFileReader(stored, cache=cache)
    hot = [b"k00100", b"k15000"]
    for _ in range(5):
        assert [reader.get(key) for key in hot] == [{"n": 100}, {"n": 15000}]
    for i in range(0, 30_000, 200):
        assert reader.get(b"k%05d" % i) == {"n": i}
        if not i % 1000:
            before = cache.misses
            assert [reader.get(key) for key in hot] == [{"n": 100}, {"n": 15000}]
            assert cache.misses == before
        assert cache.held_bytes <= 60_000
    assert cache.evictions > 50
    before = cache.held_blocks, cache.evictions
    assert reader.scan_table()["n"].to_pylist() == list(range(30_000))
    assert (cache.held_blocks, cache.evictions) == before, "a wide scan goes past the cache"


def test_what_is_held_is_counted():
    keys = [b"part=%d/%032x-%d.parquet" % (i // 5000, i << 100 | i * 7919, i % 97) for i in range(20_000)]
    texts = [f"text {i * 31 % 1009}" for i in range(20_000)]
    batch = pa.record_batch({"n": np.random.default_rng(1).integers(0, 1 << 60, 20_000), "s": texts})
    stored = written(sorted(keys), batch, block_size=16_000)
    cache = BlockCache(1 << 28)
    reader = SortedFileReader(stored, cache=cache)
    for group in (b"part=0/", b"part=1/"):  # what is made once, by decoders, is there before it is measured
        reader.scan_table(group)
    cache.clear()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()
    for group in range(4):
        assert reader.scan_table(b"part=%d/" % group).num_rows == 5000
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
    tracemalloc.stop()
    assert cache.held_blocks == reader.num_blocks
    assert 0.9 < cache.held_bytes / taken < 1.15


@pytest.mark.usefixtures("kernels")
def test_threads_share_readers_and_a_cache(tmp_path):
    path = tmp_path / "f.skb"
    path.write_bytes(numbered(6000, block_size=1500))
    cache, failures = BlockCache(80_000), []
    readers = [SortedFileReader(path, cache=cache) for _ in range(2)]

    def work(seed: int) -> None:
        reader, random = readers[seed % 2], np.random.default_rng(seed)
        for _ in range(8):
            numbers = random.integers(0, 6000, 60).tolist()
            if reader.get_many([b"k%05d" % i for i in numbers])["n"].to_pylist() != numbers:
                failures.append(numbers)
            failures.extend(i for i in numbers[:20] if reader.get(b"k%05d" % i) != {"n": i})
            low = numbers[0] - numbers[0] % 10
            if reader.scan_table(b"k%04d" % (low // 10))["n"].to_pylist() != list(range(low, low + 10)):
                failures.append(low)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert cache.evictions and cache.held_bytes <= 80_000
    for reader in readers:
        reader.close()
    cache.clear()
    assert cache.held_blocks == 0


@pytest.mark.usefixtures("kernels")
def test_damage_is_found_with_a_cache():
    stored = bytearray(numbered(3000, block_size=2000))

    def opened() -> SortedFileReader:
        return SortedFileReader(stored, cache=BlockCache(1 << 22), tail_bytes=100)

    block = opened().blocks()[3]
    key = block.first_key
    reads = (lambda r: r.get(key), lambda r: r.get_many([key] * 9), lambda r: r.scan_table(key))
    for at in range(block.offset, block.offset + block.length, 7):
        sound, damaged = opened(), opened()
        assert sound.get(key) is not None
        stored[at] ^= 4
        for read in [*reads, *reads]:
            with pytest.raises(CorruptionError):
                read(damaged)
        assert sound.get(key) is not None, "what was read when it was sound is held"
        assert sound.verify(), "but it is the file itself that is verified"
        stored[at] ^= 4
        assert damaged.get(key) is not None, "what was damaged is not held"


def test_a_mapped_file_that_was_cut_short_is_damage(tmp_path):
    path = tmp_path / "f.skb"
    path.write_bytes(numbered(3000, block_size=2000))
    source = MmapSource(path)
    reader = SortedFileReader(source, tail_bytes=100)
    os.truncate(path, 1000)
    with pytest.raises(CorruptionError, match="cut short"):
        reader.get(b"k01500")
    source.close()
    with pytest.raises(InvalidArgumentError, match="closed"):
        reader.get(b"k01500")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(CorruptionError):
        SortedFileReader(MmapSource(tmp_path / "empty"))
    with pytest.raises(NotATableError):
        MmapSource(tmp_path / "none")


def test_arrays_outlive_the_mapping_that_they_lie_in(tmp_path):
    path = tmp_path / "f.skb"
    path.write_bytes(written([b"a", b"b"], pa.record_batch({"x": [1.5, 2.5]}), compression="none"))
    source = MmapSource(path)
    found = SortedFileReader(source).scan_table()["x"]
    source.close()
    os.remove(path)
    assert found.to_pylist() == [1.5, 2.5]


@pytest.mark.parametrize("size", [-1, 1.5, None, "1 MB", True])
def test_a_cache_of_no_size_is_refused(size):
    with pytest.raises(InvalidArgumentError, match="number of bytes"):
        BlockCache(size)


def test_what_is_no_cache_and_no_identity_is_refused():
    with pytest.raises(InvalidArgumentError, match="BlockCache"):
        SortedFileReader(numbered(3), cache=1 << 20)
    source = CountingSource(numbered(3))
    source.identity = ["a", "list"]
    with pytest.raises(InvalidArgumentError, match="hashed"):
        SortedFileReader(source, cache=BlockCache(1 << 20))
    source.identity = "name", 7
    cache = BlockCache(1 << 20)
    for _ in range(2):
        assert SortedFileReader(source, cache=cache).get(b"k00001") == {"n": 1}
    assert (cache.misses, cache.hits) == (1, 1)


def test_a_held_block_needs_nothing_of_the_reader_that_brought_it(tmp_path):
    """Its dictionary is loaded before that reader closes, and a file that was read through a cache can be closed."""
    path, cache = tmp_path / "f.skb", BlockCache(1 << 22)
    names = [f"order {i}: paid in full" for i in range(2000)]
    dictionary = train([name.encode() * 3 for name in names], 4096)
    batch = pa.record_batch({"s": [f"{name} {i * 7919 % 1009:x}" for i, name in enumerate(names)]})
    path.write_bytes(written([b"k%05d" % i for i in range(2000)], batch, block_size=1000, dictionary=dictionary.data))
    for _ in range(6):
        with SortedFileReader(path, cache=cache, tail_bytes=100) as reader:
            assert reader.block(0).needs_dictionary
            assert reader.get(b"k00003") == {"s": batch["s"][3].as_py()}
            assert reader.scan_table(b"k0000")["s"].to_pylist() == batch["s"][:10].to_pylist()
    assert cache.misses == 1


def test_a_filter_is_not_asked_where_the_block_is_decoded():
    asked = []

    class Filter:
        def contains(self, keys):
            asked.append(len(keys))
            return np.array([key.as_py() != b"k00009" for key in keys])

    class Builder:
        def add(self, keys):
            pass

        def to_bytes(self):
            return b"all"

    stored = numbered(3000, block_size=2000, key_filter=Builder())
    reader = SortedFileReader(stored, cache=BlockCache(1 << 22), key_filter=lambda data: Filter())
    assert reader.get(b"k00009") is None, "as the filter has it"
    assert [reader.get(b"k00005") for _ in range(9)] == [{"n": 5}] * 9
    before = len(asked)
    assert reader.get(b"k00006") == {"n": 6}
    assert len(asked) == before
    assert reader.get_many([b"k00006", b"k00009"])["found"].to_pylist() == [True, False]
