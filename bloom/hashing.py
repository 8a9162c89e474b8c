"""Hash Arrow values to 64 bits: XXH64, seed 0, of each value's canonical form or of its Parquet encoding.

**Canonical** (`hash_array`): equal values have equal hashes in any width or unit (see `canon.py`). So a filter remains
valid after a schema change. **Raw** (`hash_raw`): the bytes of Parquet's plain encoding, as the filters inside Parquet
files contain them: there int32 5 and int64 5 hash differently.

Numbers of 8 bytes are hashed by numpy in closed form, other values by xxhash, and both by compiled code if there are
many: see `skipstone.base.lazy`.
"""

from __future__ import annotations

import operator
import re
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from xxhash import xxh64_intdigest

from ..base import canon
from ..base.arrays import read_only, to_numpy, valid_mask
from ..base.lazy import kernels_for, load_for
from ..errors import InvalidArgumentError

BLOCKS_MAX = 1 << 26
PARQUET_FORMS = ("INT32", "INT64", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
PARQUET_PREFIX = "parquet:"
_CANONICAL_NAMES = ("int", "float", "bytes", "instant", "span")
_PLAIN_WORD_NS, _PLAIN_TEXT_NS = 6, 250
_PIECE = 1 << 16
_DECIMAL_NAME = re.compile(r"decimal:-?[0-9]{1,3}")


class HashedValues(NamedTuple):
    """Hashes, value by value.

    name    what was hashed: a name of `canon.hash_name`, or "parquet:" and a physical type; only equal names compare
    hashes  uint64 [n]; any number if the value is null
    valid   bool [n], False if null; None if nothing is null
    """

    name: str
    hashes: np.ndarray
    valid: np.ndarray | None

    def present(self) -> np.ndarray:
        """Return uint64: the hashes of the values that are not null, in order."""
        return self.hashes if self.valid is None else self.hashes[self.valid]


def hash_array(array: pa.Array | pa.ChunkedArray) -> HashedValues:
    """Return the canonical hash of each value of any array for whose type `canon.hash_name` has a name.

    Raises:
        InvalidArgumentError: not an Arrow array, or of a type that cannot be hashed (lists, maps, structs, ...).
    """
    arrow_type = plain_type(array)
    name = canon.hash_name(arrow_type)
    if name is None:
        raise InvalidArgumentError(f"values of type {arrow_type} cannot be hashed: filters accept scalar values")
    return _joined(name, [_hash_chunk(chunk) for chunk in _chunks(array)])


def hash_raw(array: pa.Array | pa.ChunkedArray, form: str) -> HashedValues:
    """Return the hash of each value's plain encoding in a Parquet file, as Parquet's own filters contain it.

    Args:
        array: the values as stored. Integers for INT32 and INT64 (their low 32 or 64 bits are used; date32 counts as
            INT32); floats for FLOAT and DOUBLE; strings or binary for BYTE_ARRAY and FIXED_LEN_BYTE_ARRAY. For
            timestamps, times and decimals, only the stored integers are used: their unit or scale is the column's.
        form: "parquet:INT32" and so on, one of `PARQUET_FORMS`.

    Raises:
        InvalidArgumentError: an unknown form, a type that does not fit it, or a double that no FLOAT equals.
    """
    physical = checked_form(form)
    arrow_type = plain_type(array)
    parts = []
    for chunk in _chunks(array):
        chunk = canon.flatten(chunk)
        if physical in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") and canon.is_bytes_like(arrow_type):
            parts.append(_hash_chunk(chunk)[:2])
        elif physical in ("FLOAT", "DOUBLE") and pa.types.is_floating(arrow_type):
            values, is_exact = raw_floats(chunk, physical)
            if not is_exact.all():
                lost = chunk[int(np.argmin(is_exact))]
                raise InvalidArgumentError(
                    f"{form} cannot represent the double {lost}: round the values to float32 first"
                )
            parts.append((hash_fixed(values), valid_mask(chunk)))
        elif physical == "INT32" and (pa.types.is_integer(arrow_type) or pa.types.is_date32(arrow_type)):
            stored = chunk.view(pa.int32()) if pa.types.is_date32(arrow_type) else chunk
            parts.append((hash_fixed(_words_of(stored).astype("<u4")), valid_mask(chunk)))
        elif physical == "INT64" and pa.types.is_integer(arrow_type):
            parts.append((hash_fixed(_words_of(chunk)), valid_mask(chunk)))
        else:
            raise InvalidArgumentError(
                f"values of type {arrow_type} do not fit a filter of {form}: cast them to what the column stores (of a "
                "timestamp, time or decimal, the integers in the column's own unit or scale)"
            )
    return _joined(form, parts)


def _words_of(integers: pa.Array) -> np.ndarray:
    """Return uint64 [n]: two's complement of any width; 0 if null."""
    words = canon.hash_form(integers).fixed
    assert words is not None
    return words


def raw_floats(array: pa.Array, physical: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the floats as that physical type stores them, and bool [n]: False if none equals the value (NaN fits)."""
    wide = to_numpy(array.cast(pa.float64()).fill_null(0.0))
    if physical == "DOUBLE":
        return wide, np.ones(len(wide), dtype=bool)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype(np.float32)
    return narrow, (narrow.astype(np.float64) == wide) | np.isnan(wide)


def checked_form(form: str) -> str:
    """Return the physical type in "parquet:TYPE". Raise InvalidArgumentError for any other text."""
    physical = form.removeprefix(PARQUET_PREFIX) if isinstance(form, str) else ""
    if physical not in PARQUET_FORMS or not form.startswith(PARQUET_PREFIX):
        names = ", ".join(PARQUET_PREFIX + each for each in PARQUET_FORMS)
        raise InvalidArgumentError(f"unknown hash {form!r}: it is one of {names}")
    return physical


def checked_name(name: str) -> str:
    """Return the name of a hash. Raise InvalidArgumentError if no function here creates hashes of that name."""
    is_valid = isinstance(name, str) and (
        name in _CANONICAL_NAMES
        or _DECIMAL_NAME.fullmatch(name) is not None
        or name in {PARQUET_PREFIX + each for each in PARQUET_FORMS}
    )
    if not is_valid:
        raise InvalidArgumentError(f"no hash is named {name!r}: take the name that hash_array or hash_raw gives")
    return name


def pieces(values: pa.Array | pa.ChunkedArray, plain_ns: int) -> list[pa.Array]:
    """Return the values in order, in parts so short that the hashes of one stay in the cache until they are used.

    Args:
        values: of any type.
        plain_ns: the nanoseconds that the plain twin needs for one hashed value. Kernels are loaded here if all values
            together justify it: a single part would not.
    """
    hash_ns = _PLAIN_TEXT_NS if canon.is_bytes_like(plain_type(values)) else _PLAIN_WORD_NS
    load_for("bloom.kernels", (hash_ns + plain_ns) * len(values))
    if len(values) <= _PIECE or pa.types.is_dictionary(values.type):
        return [values]  # each part of dictionary-encoded values would hash the whole dictionary
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    return [chunk.slice(start, _PIECE) for chunk in chunks for start in range(0, len(chunk), _PIECE)]


def checked_hashes(hashes: np.ndarray) -> np.ndarray:
    """Return hashes as contiguous uint64 [n]. Raise InvalidArgumentError for anything else."""
    if not isinstance(hashes, np.ndarray) or hashes.dtype != np.uint64 or hashes.ndim != 1:
        raise InvalidArgumentError("hashes must be a one-dimensional numpy array of uint64, as hash_array gives")
    return np.ascontiguousarray(hashes)


def distinct(hashes: np.ndarray) -> np.ndarray:
    """Return uint64: each hash once, ascending. Apart from collisions, their number is that of the distinct values."""
    ordered = np.sort(hashes)
    is_first = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


# -- one plain array --------------------------------------------------------------------------------------------------


def plain_type(array: pa.Array | pa.ChunkedArray) -> pa.DataType:
    """Return the type of the values: of an extension its storage, of a dictionary its values."""
    if not isinstance(array, (pa.Array, pa.ChunkedArray)):
        raise InvalidArgumentError(
            f"expected a pyarrow array, got {type(array).__name__}: wrap it in pyarrow.array(...)"
        )
    arrow_type = array.type
    while isinstance(arrow_type, pa.BaseExtensionType) or pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.storage_type if isinstance(arrow_type, pa.BaseExtensionType) else arrow_type.value_type
    return arrow_type


def _chunks(array: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    """Return the chunks one by one, because Arrow cannot join strings of more than 2 GiB."""
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    return [chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk for chunk in chunks]


def _joined(name: str, parts: list[tuple[np.ndarray, np.ndarray | None]]) -> HashedValues:
    if len(parts) == 1:
        return HashedValues(name, *parts[0])
    hashes = np.concatenate([np.empty(0, dtype=np.uint64), *(part[0] for part in parts)])
    if all(valid is None for _, valid in parts):
        return HashedValues(name, hashes, None)
    masks = [np.ones(len(part), dtype=bool) if valid is None else valid for part, valid in parts]
    return HashedValues(name, hashes, np.concatenate(masks))


def _hash_chunk(array: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    if pa.types.is_dictionary(array.type):
        if 0 < len(array.dictionary) <= len(array):
            return _hash_dictionary(array)
        # Once to decode, once for the storage of an extension that was below the dictionary.
        array = canon.flatten(canon.flatten(array))
    form = canon.hash_form(array)
    if form.fixed is not None:
        return hash_fixed(form.fixed), form.valid
    if form.wide is not None:
        return hash_wide(form.wide), form.valid
    assert form.offsets is not None and form.data is not None
    return hash_var(form.offsets, form.data), form.valid


def _hash_dictionary(array: pa.DictionaryArray) -> tuple[np.ndarray, np.ndarray | None]:
    """Hash each dictionary value once. A value is null if its index is null, or the value to which it points."""
    hashes, value_valid = _hash_chunk(canon.flatten(array.dictionary))
    valid = valid_mask(array.indices)
    indices = _words_of(array.indices).view(np.int64)
    if value_valid is not None:
        valid = value_valid[indices] if valid is None else valid & value_valid[indices]
    return hashes[indices], valid


# -- canonical forms --------------------------------------------------------------------------------------------------


def hash_fixed(values: np.ndarray) -> np.ndarray:
    """Return uint64 [n]: the hash of each number's little-endian bytes."""
    values = np.ascontiguousarray(values)
    if values.itemsize != 8:
        return _hash_rows(values.view(np.uint8).reshape(len(values), values.itemsize))
    kernels = kernels_for("bloom.kernels", _PLAIN_WORD_NS * len(values))
    words = values.view(np.uint64)
    return _hash_words(words) if kernels is None else kernels.xxh64_words(read_only(words))


_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)


def _hash_words(words: np.ndarray) -> np.ndarray:
    """Return XXH64 of the eight bytes of each number, by the xxHash specification (Y. Collet, version 0.1.1)."""
    value = (_P5 + np.uint64(8)) ^ (_rotate(words * _P2, 31) * _P1)
    value = _rotate(value, 27) * _P1 + _P4
    value = (value ^ (value >> np.uint64(33))) * _P2
    value = (value ^ (value >> np.uint64(29))) * _P3
    return value ^ (value >> np.uint64(32))


def _rotate(values: np.ndarray, bits: int) -> np.ndarray:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _hash_rows(rows: np.ndarray) -> np.ndarray:
    """Return XXH64 of each row of uint8 [n, width]."""
    return np.fromiter(map(xxh64_intdigest, np.ascontiguousarray(rows)), dtype=np.uint64, count=len(rows))


def hash_wide(rows: np.ndarray) -> np.ndarray:
    """Return uint64 [n]: the hash of each little-endian two's complement number, uint8 [n, 16 or 32].

    A 32-byte number that fits 16 bytes is hashed as 16 bytes, so the hash is the same in decimal128 and decimal256.
    """
    if rows.shape[1] == 16:
        return _hash_rows(rows)
    words = np.ascontiguousarray(rows).view(np.int64)
    sign = words[:, 1] >> np.int64(63)
    is_narrow = (words[:, 2] == sign) & (words[:, 3] == sign)
    return np.where(is_narrow, _hash_rows(rows[:, :16]), _hash_rows(rows))


def hash_var(offsets: np.ndarray, data: np.ndarray) -> np.ndarray:
    """Return uint64 [n]: the hash of data[offsets[i]:offsets[i + 1]] for int64 [n + 1] offsets into uint8 data."""
    kernels = kernels_for("bloom.kernels", _PLAIN_TEXT_NS * (len(offsets) - 1))
    if kernels is not None:
        return kernels.xxh64_var(read_only(offsets), read_only(data))
    view, ends = data.data, offsets.tolist()
    values = (view[low:high] for low, high in pairwise(ends))
    return np.fromiter(map(xxh64_intdigest, values), dtype=np.uint64, count=len(ends) - 1)


def checked_blocks(blocks: int) -> int:
    """Return a size in blocks. Raise InvalidArgumentError if it is not a whole number from 1 to `BLOCKS_MAX`."""
    blocks = checked_count("blocks", blocks)
    if not 1 <= blocks <= BLOCKS_MAX:
        raise InvalidArgumentError(f"a filter has from 1 to {BLOCKS_MAX:,} blocks of 32 bytes: got {blocks:,}")
    return blocks


def checked_count(name: str, count: int) -> int:
    """Return a whole number from 0 on as an int. Raise InvalidArgumentError for anything else."""
    try:
        number = -1 if isinstance(count, bool) else operator.index(count)
    except TypeError:
        number = -1
    if number < 0:
        raise InvalidArgumentError(f"{name} must be a whole number from 0 on: got {count!r}")
    return number
