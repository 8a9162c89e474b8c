"""XXH64 against the specification's values, the reference library, and its three twins against each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.bloom import kernels, plain

# Known answers of XXH64 with seed 0: one on each side of every boundary in the algorithm (1, 4, 8 and 32 bytes).
VECTORS = [
    (b"", 0xEF46DB3751D8E999),
    (b"a", 0xD24EC4F1A98C6E5B),
    (b"abc", 0x44BC2CF5AD770999),
    (b"message digest", 0x066ED728FCEEB3BE),
    (b"abcdefghijklmnopqrstuvwxyz", 0xCFE1F278FA89835C),
    (b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", 0xAAA46907D3047814),
    (b"12345678901234567890123456789012345678901234567890123456789012345678901234567890", 0xE04A477F19EE145D),
]


def packed(values: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int64)
    return offsets, np.frombuffer(b"".join(values) or b"\0", dtype=np.uint8)


@pytest.mark.parametrize("data, expected", VECTORS, ids=[str(len(data)) for data, _ in VECTORS])
def test_known_answers(data: bytes, expected: int):
    row = np.frombuffer(data, dtype=np.uint8).reshape(1, len(data))
    assert plain.xxh64(data) == expected
    for count in (1, 20):
        assert plain.xxh64_rows(np.repeat(row, count, axis=0)).tolist() == [expected] * count
    assert kernels.xxh64_var(*packed([data])).tolist() == [expected]


def test_every_length_against_the_reference_library():
    xxhash = pytest.importorskip("xxhash")
    rng = np.random.default_rng(7)
    values = [rng.bytes(size) for size in [*range(140), 1_000, 4_097]]
    expected = [xxhash.xxh64_intdigest(value) for value in values]
    assert [plain.xxh64(value) for value in values] == expected
    assert kernels.xxh64_var(*packed(values)).tolist() == expected
    for value, hashed in zip(values, expected, strict=True):
        row = np.frombuffer(value, dtype=np.uint8).reshape(1, -1)
        assert plain.xxh64_rows(np.repeat(row, 9, axis=0)).tolist() == [hashed] * 9


@given(st.lists(st.binary(max_size=80), max_size=60))
def test_the_twins_agree(values: list[bytes]):
    offsets, data = packed(values)
    expected = [plain.xxh64(value) for value in values]
    assert plain.xxh64_var(offsets, data).tolist() == expected
    assert kernels.xxh64_var(offsets, data).tolist() == expected


@pytest.mark.parametrize("width", [0, 1, 3, 4, 7, 8, 12, 31, 32, 36, 45, 64, 77])
def test_neighbours_of_one_width_are_hashed_together_without_a_seam(width: int):
    """Before, within and after them a value of another width, on both sides of where the kernel cuts."""
    rng = np.random.default_rng(width)
    for count in (1, 255, 256, 257, 600):
        for other in (None, 0, 255, 256, count - 1):
            widths = [width + 1 if i == other else width for i in range(count)]
            values = [rng.bytes(size) for size in widths]
            assert kernels.xxh64_var(*packed(values)).tolist() == [plain.xxh64(value) for value in values]


@given(st.lists(st.integers(0, 2**64 - 1), max_size=40))
def test_words_are_hashed_as_their_eight_bytes(words: list[int]):
    expected = [plain.xxh64(word.to_bytes(8, "little")) for word in words]
    assert kernels.xxh64_words(np.array(words, dtype=np.uint64)).tolist() == expected


def test_the_plain_twin_groups_values_of_one_length():
    rng = np.random.default_rng(3)
    values = [rng.bytes(int(size)) for size in rng.choice([0, 3, 36, 500], size=400, p=[0.3, 0.3, 0.39, 0.01])]
    assert plain.xxh64_var(*packed(values)).tolist() == [plain.xxh64(value) for value in values]


@pytest.mark.parametrize("width", [4, 8, 16, 32])
def test_many_rows_are_hashed_in_pieces_without_a_seam(width: int):
    rows = np.random.default_rng(width).integers(0, 256, (20_001, width), dtype=np.uint8)
    hashes = plain.xxh64_rows(rows)
    for i in (0, 8_191, 8_192, 16_383, 16_384, 20_000):
        assert int(hashes[i]) == plain.xxh64(rows[i].tobytes())
