"""Merging many runs of any make, against a dict: by compiled code and without, in large batches and in small ones."""

import contextlib
import io
import random
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from example_counts import is_thorough
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.arrays import binary_array
from skipstone.errors import CorruptionError, SkipstoneError
from skipstone.hfile_like import (
    SortedFileReader,
    SortedFileWriter,
    kernels_merge,
    key_order,
    merge,
    merge_runs,
)
from skipstone.hfile_like.merge import StoredBlocks
from sorted_file_builders import CountingSource, nodes_of
from sorted_file_crafted import numbers as number_keys
from sorted_file_crafted import one_block
from sorted_file_layout import repair_block
from sorted_file_samples import make

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
UNIVERSE = 900


def numbers(i: int) -> bytes:
    return b"\x01" + (3 * i).to_bytes(8, "big")


def names(i: int) -> bytes:
    digits = random.Random(i).randbytes(8).hex()
    return b"day=%03d/%s_%d.parquet" % (i // 50, digits.encode(), i % 7)


def any_bytes(i: int) -> bytes:
    chooser = random.Random(i)
    return bytes(chooser.choice(b"\x00\x01a\xff") for _ in range(chooser.randrange(9))) + i.to_bytes(2, "big")


MAKES = {make.__name__: sorted(make(i) for i in range(UNIVERSE)) for make in (numbers, names, any_bytes)}


@contextlib.contextmanager
def limits(**values: int):
    """The merge's bounds of memory, meanwhile others."""
    before = {name: getattr(merge, name) for name in values}
    for name, value in values.items():
        setattr(merge, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(merge, name, value)


@contextlib.contextmanager
def kernels(are_used: bool):
    """Every order by the compiled twin, or by the plain one."""
    before, key_order.kernels_for = key_order.kernels_for, lambda family, ns: kernels_merge if are_used else None
    try:
        yield
    finally:
        key_order.kernels_for = before


def run_of(entries: dict[bytes, int | None], **options) -> bytes:
    """None is a tombstone."""
    target = io.BytesIO()
    ordered = sorted(entries.items())
    values = [value for _, value in ordered]
    batch = pa.record_batch(
        [pa.array(values, pa.int64()), pa.array([None if v is None else f"part-{v:04d}" for v in values])],
        schema=SCHEMA,
    )
    with SortedFileWriter(target, schema=SCHEMA, **options) as writer:
        writer.write([key for key, _ in ordered], batch, [value is None for value in values])
    return target.getvalue()


def merged(runs: list[bytes], **options) -> bytes:
    output = io.BytesIO()
    found = merge_runs(runs, output, **options)
    reader = SortedFileReader(output.getvalue())
    assert (found.num_entries, found.num_deleted) == (reader.num_entries, reader.num_deleted)
    assert found.size_bytes == len(output.getvalue())
    return output.getvalue()


def contents(data: bytes) -> dict[bytes, int | None]:
    reader = SortedFileReader(data)
    assert reader.verify() == []
    rows = reader.scan_table(include_deleted=True).to_pylist()
    assert all(r["s"] == (None if r["deleted"] else f"part-{r['n']:04d}") for r in rows)
    return {r["key"]: None if r["deleted"] else r["n"] for r in rows}


# -- order ------------------------------------------------------------------------------------------------------------

KEYS = st.one_of(
    st.binary(max_size=3), st.binary(max_size=20), st.integers(0, 99).map(lambda i: b"a shared beginning/%d" % i)
)


@settings(max_examples=1000 if is_thorough() else 60)
@given(st.lists(st.sets(KEYS, max_size=25).map(sorted), max_size=9))
def test_compiled_order_is_that_of_its_plain_twin(runs):
    keys = binary_array([key for run in runs for key in run], pa.binary())
    bounds = np.cumsum([0, *map(len, runs)])
    plain = key_order.plain_order(keys)
    assert {key: run for run, part in enumerate(runs) for key in part} == {
        keys[i].as_py(): int(np.searchsorted(bounds, i, side="right")) - 1 for i in plain.tolist()
    }
    with kernels(True):
        assert key_order.merge_order(keys, bounds).tolist() == plain.tolist()
        # What is not in order, as damage may leave it, ends as well, within the same bounds.
        backwards = binary_array([key for run in runs for key in reversed(run)], pa.binary())
        order = key_order.merge_order(backwards, bounds)
        assert len(order) <= len(backwards) and set(order.tolist()) <= set(range(len(backwards)))


# -- merges -----------------------------------------------------------------------------------------------------------

PARTS = st.tuples(
    st.integers(0, UNIVERSE - 1), st.integers(1, 500), st.integers(1, 40), st.sampled_from([0.0, 0.3, 1.0])
)
RUNS = st.lists(
    st.tuples(st.lists(PARTS, min_size=1, max_size=3), st.sampled_from([60, 300, 1500, 30_000])),
    min_size=1,
    max_size=10,
)


def entries_of(make: str, parts: list, seed: int) -> dict[bytes, int | None]:
    chooser = random.Random(seed)
    return {
        key: None if chooser.random() < gone else chooser.randrange(10_000)
        for low, size, step, gone in parts
        for key in MAKES[make][low : low + size : step]
    }


@settings(max_examples=500 if is_thorough() else 20)
@given(
    make=st.sampled_from(sorted(MAKES)),
    runs=RUNS,
    drop=st.booleans(),
    ends=st.tuples(st.none() | st.integers(0, UNIVERSE - 1), st.none() | st.integers(0, UNIVERSE - 1)),
    options=st.fixed_dictionaries(
        {"block_size": st.sampled_from([60, 400, 1500, 50_000])},
        optional={
            "compression": st.sampled_from(["none", "zstd"]),
            "summaries": st.sampled_from([[], ["n"], ["n", "s"]]),
            "cut_prefix_bytes": st.sampled_from([1, 7]),
        },
    ),
    bounds=st.fixed_dictionaries(
        {},
        optional={
            "BATCH_BYTES": st.sampled_from([1, 3000]),
            "WINDOWS_BYTES_MAX": st.sampled_from([1, 5000]),
            "DECODED_BYTES_MAX": st.sampled_from([1, 2000]),
        },
    ),
    compiled=st.booleans(),
    fan_out=st.sampled_from([5, 256]),
)
def test_any_runs_give_what_a_dict_gives(make, runs, drop, ends, options, bounds, compiled, fan_out):
    entries = [entries_of(make, parts, seed) for seed, (parts, _) in enumerate(runs)]
    summarised = {"summaries": options["summaries"]} if "summaries" in options else {}
    start, stop = (None if i is None else MAKES[make][i] for i in ends)
    with nodes_of(fan_out), limits(**bounds), kernels(compiled):
        files = [
            run_of(run, block_size=size, **(summarised if i % 2 else {}))
            for i, (run, (_, size)) in enumerate(zip(entries, runs, strict=True))
        ]
        found = contents(merged(files, drop_tombstones=drop, start=start, stop=stop, **options))
    expected: dict[bytes, int | None] = {}
    for run in entries:
        expected.update(run)
    assert found == {
        key: value
        for key, value in sorted(expected.items())
        if (start is None or key >= start) and (stop is None or key < stop) and not (drop and value is None)
    }


@pytest.mark.parametrize("held_bytes", [merge.DECODED_BYTES_MAX, 300 * 200])
def test_three_hundred_runs(held_bytes):
    chooser = random.Random(7)
    entries = [
        {
            key: None if chooser.random() < 0.2 else age
            for key in chooser.sample(MAKES["names"], chooser.choice([1, 15]))
        }
        for age in range(300)
    ]
    with limits(DECODED_BYTES_MAX=held_bytes, BATCH_BYTES=20_000):
        found = contents(merged([run_of(run, block_size=500) for run in entries], block_size=2000))
    expected: dict[bytes, int | None] = {}
    for run in entries:
        expected.update(run)
    assert found == dict(sorted(expected.items()))


def test_a_run_that_begins_where_a_batch_of_many_ends_is_part_of_it():
    """Else its key would come again in the next batch, beside the older entry of it. Batches of about the nine older
    runs' bytes: one size among these fills up with just them."""
    first, middle, last = (numbers(i) for i in (0, 1, 5))
    older = [{first: age, middle if age < 4 else last: age} for age in range(9)]
    runs = [run_of(run) for run in [*older, {last: 99}]]
    for batch_bytes in range(540, 580):
        with limits(BATCH_BYTES=batch_bytes):
            assert contents(merged(runs)) == {first: 8, middle: 3, last: 99}


def test_a_few_keys_leave_most_blocks_of_a_large_run_as_they_lie():
    """However many small runs reach over all of the large one."""
    large = {key: i for i, key in enumerate(MAKES["numbers"])}
    chooser = random.Random(3)
    small = [dict.fromkeys([min(large), *chooser.sample(sorted(large), 1), max(large)], 7) for _ in range(12)]
    data = run_of(large, block_size=400)
    result = merged([data, *(run_of(run) for run in small)], block_size=400)
    before = {b.first_key: data[b.offset + 80 : b.offset + b.length] for b in SortedFileReader(data).blocks()}
    after = {b.first_key: result[b.offset + 80 : b.offset + b.length] for b in SortedFileReader(result).blocks()}
    kept = sum(before[key] == after.get(key) for key in before)
    assert len(before) > 60 and kept >= len(before) - 2 * 14
    assert contents(result) == {**large, **{key: 7 for run in small for key in run}}


# -- copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_blocks_moved_together_are_those_moved_one_by_one(compression):
    data = run_of(dict.fromkeys(MAKES["names"], 5), block_size=700, compression=compression)
    reader = SortedFileReader(data)
    infos = reader.blocks()
    assert len(infos) > 60
    low, high, offset = 3, len(infos) - 2, 1 << 40
    view = memoryview(data)[infos[0].offset : infos[-1].offset + infos[-1].length]
    found = StoredBlocks(view, infos, len(SCHEMA))
    assert found.are_sound and found.compressed.any() == (compression == "zstd")
    at = infos[low].offset
    one_by_one = bytearray(data[at : infos[high].offset])
    for info in infos[low:high]:
        repair_block(one_by_one, info.offset - at, info.length, moved=offset)
    assert found.moved(low, high, offset) == one_by_one


def test_every_bit_that_is_damaged_in_blocks_to_be_copied_is_found():
    data = run_of(dict.fromkeys(MAKES["numbers"][:40], 5), block_size=400)
    infos = SortedFileReader(data).blocks()
    assert len(infos) > 2
    for at in range(infos[0].offset, infos[-1].offset + infos[-1].length):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        view = memoryview(damaged)[infos[0].offset : infos[-1].offset + infos[-1].length]
        assert not StoredBlocks(view, infos, len(SCHEMA)).are_sound


def test_a_damaged_or_shortened_run_among_others_leaves_no_file(tmp_path):
    keys = MAKES["names"]
    runs = [run_of(dict.fromkeys(keys[i::3], i), block_size=900) for i in range(3)]
    runs.append(run_of({b"z" + key: 3 for key in keys}, block_size=900))
    chooser = random.Random(5)
    for which in (1, 3):
        data, refused = runs[which], 0
        for _ in range(25):
            damaged = bytearray(data)
            damaged[chooser.randrange(8, len(data))] ^= 1 << chooser.randrange(8)
            shortened = data[: chooser.randrange(len(data))]
            for bad in (bytes(damaged), shortened):
                with pytest.raises(SkipstoneError) as error:
                    merge_runs([*runs[:which], bad, *runs[which + 1 :]], tmp_path / "out", block_size=900)
                refused += isinstance(error.value, CorruptionError)
        assert refused >= 45  # a flipped bit of the version is a FormatVersionError
    assert list(tmp_path.iterdir()) == []


def test_blocks_that_come_to_more_than_the_index_says_are_refused(tmp_path):
    # Its index says 8 bytes of a block of 12 MiB.
    runs = [one_block(1 << 20, number_keys()), make([bytes(7) + b"\5", bytes(6) + b"\5\5"], {})]
    with pytest.raises(CorruptionError, match="which is not what the index says"):
        merge_runs(runs, tmp_path / "out", block_size=900)
    assert list(tmp_path.iterdir()) == []


# -- what it holds, what it reads -------------------------------------------------------------------------------------


class _Counted(io.RawIOBase):
    """Takes bytes and keeps none."""

    def writable(self):
        return True

    def write(self, data):
        return len(data)


def large_run(seed: int, count: int) -> bytes:
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(0, 1 << 62, count)).tolist()
    values = pa.record_batch({"b": pa.array([rng.bytes(4000) for _ in keys], pa.binary(4000))})
    target = io.BytesIO()
    with SortedFileWriter(target, schema=values.schema, compression="none") as writer:
        writer.write([key.to_bytes(8, "big") for key in keys], values)
    return target.getvalue()


@pytest.mark.parametrize("runs", [2, 40])
def test_what_a_merge_holds_does_not_grow_with_the_runs(runs):
    files = [large_run(seed, 6_000 // runs) for seed in range(runs)]
    assert sum(map(len, files)) > 20 << 20
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0

    class Sink(_Counted):
        def write(self, data):
            nonlocal most
            most = max(most, pool.bytes_allocated() - before + tracemalloc.get_traced_memory()[0])
            return len(data)

    tracemalloc.start()
    try:
        with limits(BATCH_BYTES=1 << 20, WINDOWS_BYTES_MAX=1 << 20):
            merge_runs(files, Sink(), compression="none")
    finally:
        tracemalloc.stop()
    assert 0 < most < 12 << 20


def test_a_run_is_read_once_and_in_few_requests():
    keys = MAKES["numbers"]
    data = run_of(dict.fromkeys(keys, 1), block_size=400)
    source = CountingSource(data)
    change = run_of(dict.fromkeys(keys[::200], 2), block_size=400)
    tail = 512
    with limits(WINDOWS_BYTES_MAX=4_000):
        merge_runs([SortedFileReader(source, tail_bytes=tail), change], io.BytesIO(), block_size=400)
    blocks = SortedFileReader(data).blocks()
    assert len(blocks) > 60
    read = [(low, low + size) for low, size in source.asked if low < blocks[-1].offset + blocks[-1].length]
    of_blocks = [(low, high) for low, high in read if low <= blocks[-1].offset]
    assert sum(high - low for low, high in of_blocks) <= len(data) + 2 * tail
    assert len(of_blocks) <= len(data) // 1_000 + 5
