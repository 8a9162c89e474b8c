"""XXH64 in numpy and in compiled code, against the reference library."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skipstone.bloom import kernels
from skipstone.bloom.hashing import _hash_words, hash_fixed, hash_var
from xxhash import xxh64_intdigest

VALUES = st.lists(st.binary(max_size=100) | st.binary(min_size=28, max_size=36), max_size=60)


def packed(values: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int64)
    return offsets, np.frombuffer(b"".join(values) or b"\0", dtype=np.uint8)


@given(VALUES)
def test_texts_have_the_hashes_of_the_library(values: list[bytes]):
    expected = [xxh64_intdigest(value) for value in values]
    assert hash_var(*packed(values)).tolist() == expected
    assert kernels.xxh64_var(*packed(values)).tolist() == expected


@pytest.mark.parametrize("width", [0, 1, 3, 4, 7, 8, 12, 31, 32, 33, 63, 64, 100])
def test_neighbours_of_one_width_are_hashed_together(width: int):
    random = np.random.default_rng(width)
    values = [random.bytes(width) for _ in range(600)] + [b"x"]
    assert kernels.xxh64_var(*packed(values)).tolist() == [xxh64_intdigest(value) for value in values]


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_words_have_the_hashes_of_their_bytes(numbers: list[int]):
    words = np.array(numbers, dtype=np.uint64)
    expected = [xxh64_intdigest(word.to_bytes(8, "little")) for word in numbers]
    assert kernels.xxh64_words(words).tolist() == _hash_words(words).tolist() == expected


@pytest.mark.parametrize("dtype", ["<i4", "<f4", "<f8", "<u8"])
def test_numbers_of_any_width(dtype: str):
    values = np.arange(40).astype(dtype)
    expected = [xxh64_intdigest(value.tobytes()) for value in values]
    assert hash_fixed(values).tolist() == expected == hash_fixed(np.repeat(values, 2)[::2]).tolist()
    assert pa.array(values).nbytes == values.nbytes
