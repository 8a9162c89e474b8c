"""Keys of any content: whatever they are, each comes back, is found, and lies in the encoding that suits it."""

from __future__ import annotations

import random

import pyarrow as pa
from skipstone.hfile_like import SortedFileReader
from sorted_file_builders import written

FIXED, BUNDLE, NUMBERS = 1, 2, 3


def encodings(data: bytes) -> set[int]:
    """Of the keys of every block: the second entry of its directory."""
    return {data[block.offset + 16 + 16 + 1] for block in SortedFileReader(data).blocks()}


def file_of(keys: list[bytes], **options) -> bytes:
    return written(keys, pa.record_batch({"n": range(len(keys))}), **options)


def check(keys: list[bytes], data: bytes, some: list[bytes]) -> None:
    reader = SortedFileReader(data)
    assert reader.verify() == []
    table = reader.scan_table()
    assert table["key"].to_pylist() == keys
    assert table["n"].to_pylist() == list(range(len(keys)))
    place = {key: i for i, key in enumerate(keys)}
    asked = [near for key in some for near in (key, key + b"\0", key[:-1])]
    assert reader.get_many(asked)["n"].to_pylist() == [place.get(key) for key in asked]
    for key in asked[:9]:
        row = reader.get(key)
        assert (None if row is None else row["n"]) == place.get(key)
        assert reader.scan_table(start=key).num_rows == sum(other >= key for other in keys)


def test_numbers_that_take_much_more_than_their_bytes_are_transposed():
    keys = [b"k" + (i % 5 << 56 | i // 5).to_bytes(8, "big") for i in range(2_000)]
    data = file_of(sorted(keys), block_size=1 << 20, compression="zstd")
    assert encodings(data) == {FIXED}
    check(sorted(keys), data, keys[::700])


def test_keys_that_change_change_their_encoding():
    names = [b"a%05d-%d" % (i, i * 7919 % 1000) for i in range(2_000)]
    noise = sorted({b"b" + random.Random(i).randbytes(60) for i in range(600)})
    numbers = [b"c" + i.to_bytes(8, "big") for i in range(3_000)]
    keys = [*names, *noise, *numbers]
    data = file_of(keys, block_size=8_000, compression="zstd")
    assert encodings(data) == {BUNDLE, FIXED, NUMBERS}
    check(keys, data, keys[::997])
