"""Names of files as keys, and names sought among others: against plain dicts and lists."""

import io
import uuid

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.hfile_like import SortedFileReader, SortedFileWriter, merge_runs
from sorted_files import written

TEMPLATE_KEYS = 4


def uuids(count: int, version: int = 4) -> list[str]:
    generator = np.random.default_rng(7)
    return [str(uuid.UUID(bytes=generator.bytes(16), version=version)) for _ in range(count)]


UUIDS = st.uuids(version=4).map(str) | st.uuids().map(str)
NUMBERS = st.integers(0, 12) | st.integers(0, 10**6) | st.sampled_from([10**9, 10**17])
NAMES = st.one_of(
    st.builds("d={:02d}/{}-{}.parquet".format, st.integers(0, 3), UUIDS, NUMBERS),
    st.builds("{}/{}".format, NUMBERS, UUIDS),
    st.builds("part-{:05d}-{:08x}".format, st.integers(0, 99_999), st.integers(2**28, 2**32 - 1)),
)


@st.composite
def names(draw) -> list[bytes]:
    """Of one make mostly, now and then another among them."""
    make = draw(st.sampled_from([*NAMES.original_strategies, NAMES]))
    return sorted({name.encode() for name in draw(st.lists(make, min_size=1, max_size=60))})


@settings(max_examples=examples(80))
@given(
    keys=names(), others=st.lists(NAMES.map(str.encode), max_size=5), block_size=st.sampled_from([900, 5000, 1 << 20])
)
def test_names_as_keys_are_found_and_scanned(keys, others, block_size):
    data = written(keys, pa.record_batch({"n": pa.array(range(len(keys)), pa.int64())}), block_size=block_size)
    reader = SortedFileReader(data)
    assert reader.verify() == []
    assert reader.scan_table()["key"].to_pylist() == keys
    there = {key: i for i, key in enumerate(keys)}
    for key in [*keys[:20], *others, b"", keys[0] + b"0", keys[-1][:-1], b"\xff"]:
        assert reader.get(key) == ({"n": there[key]} if key in there else None)
        assert reader.scan_table(start=key)["key"].to_pylist() == [k for k in keys if k >= key]
        assert reader.scan_table(prefix=key)["key"].to_pylist() == [k for k in keys if k.startswith(key)]
    target = io.BytesIO()
    merge_runs([data, written(keys[::2], pa.record_batch({"n": pa.array([7] * len(keys[::2]))}))], target)
    merged = SortedFileReader(target.getvalue()).scan_table()
    assert merged["key"].to_pylist() == keys
    assert merged["n"].to_pylist() == [7 if i % 2 == 0 else i for i in range(len(keys))]


def test_small_blocks_between_large_ones_cost_these_nothing():
    tails = sorted(f"{one}-{i % 17}.parquet" for i, one in enumerate(uuids(310)))
    keys = [f"d={day:03}/{tail}".encode() for day in range(30) for tail in tails]
    schema = pa.schema([("n", pa.int64())])
    sizes = []
    for in_groups in (False, True):
        out = io.BytesIO()
        with SortedFileWriter(out, schema=schema, block_size=18_500) as writer:
            for low in range(0, len(keys), 310):
                writer.write(keys[low : low + 310], pa.record_batch([[1] * 310], schema=schema))
                if in_groups:
                    writer.end_group(str(low))
        sizes.append(len(out.getvalue()))
        assert SortedFileReader(out.getvalue()).scan_table()["key"].to_pylist() == keys
    assert sizes[1] < 1.15 * sizes[0]  # each group ends with a block of few names


@pytest.mark.parametrize(
    ("makes", "bytes_a_key"),
    [
        (lambda i, u: f"year=2024/month=3/part-{i:05d}-{u}-c000.snappy.parquet", 15.4),
        (lambda i, u: f"year=2024/month=3/{u}-{i % 7}.parquet", 14.7),
        (lambda i, u: f"part-{i:08d}.snappy.parquet/{i:08d}", 0.1),
    ],
)
def test_names_as_keys_take_few_bytes(makes, bytes_a_key):
    keys = sorted(makes(i, u).encode() for i, u in enumerate(uuids(5000)))
    target = io.BytesIO()
    with SortedFileWriter(target, schema=pa.schema([]), block_size=1 << 24) as writer:
        writer.write(keys)
    reader = SortedFileReader(target.getvalue())
    assert target.getvalue()[reader.blocks()[0].offset + 16 + 16 + 1] == TEMPLATE_KEYS
    assert reader.blocks()[0].length <= 5000 * bytes_a_key + 600


@settings(max_examples=examples(60))
@given(
    column=st.lists(NAMES | st.none() | st.text(max_size=3), min_size=1, max_size=50),
    others=st.lists(NAMES, max_size=4),
    data=st.data(),
)
def test_names_are_sought_as_by_comparing_all(column, others, data):
    if data.draw(st.booleans()):  # of one make
        column = [f"x/{u}-{i}.parquet" for i, u in enumerate(uuids(len(column), data.draw(st.sampled_from([1, 4]))))]
    deleted = [data.draw(st.booleans()) for _ in column]
    keys = [b"p" + i.to_bytes(8, "big") for i in range(len(column))]
    reader = SortedFileReader(
        written(keys, pa.record_batch({"s": pa.array(column, pa.string())}), deleted, block_size=600)
    )
    wanted = [*others, *data.draw(st.lists(st.sampled_from([c for c in column if c] or ["?"]), max_size=6))]
    first = data.draw(st.integers(0, len(column)))
    last = data.draw(st.integers(first, len(column) + 3))
    found = reader.find_numbered(b"p", first, last, "s", [name.encode() for name in wanted])
    inside = range(first, min(last + 1, len(column)))
    assert found.tolist() == [i for i in inside if column[i] in wanted and not deleted[i]]
    between = reader.numbered_between(b"p", first, last, include_deleted=True)
    assert between.numbers.tolist() == list(inside)
    assert between.columns["s"].to_pylist() == [column[i] for i in inside]
    assert between.deleted.tolist() == [deleted[i] for i in inside]
    live = reader.numbered_between(b"p", first, last, ["s"])
    assert live.columns["s"].to_pylist() == [column[i] for i in inside if not deleted[i]]
