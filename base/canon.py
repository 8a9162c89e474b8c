"""One canonical form of a value: for comparing (order codes) and for hashing (hash forms).

Two equal values must never differ in form, or a file that contains a match is skipped. Equality is the predicate's:
NaN equals NaN and is greater than any other value, -0.0 equals 0.0, widths of integers and floats do not matter,
strings compare by their UTF-8 bytes, timestamps by instant.

**Order codes** represent bounds. A column is of one of two classes:

    code     int64 that orders as the values do: integers, bool, date, time, timestamp, duration, float, decimal of
             at most 18 digits. Codes are of the column's own type: a literal is cast to that type first.
    bytes    binary that orders (memcmp) as the values do: string, binary, wider decimals

Every other type (list, map, struct, null, interval) has no class and is not indexed. Of extension types, only those in
`_STORED_VALUES` have the class of their storage type: their values are equal, and order, as the stored ones do. For any
other this is unknown (Arrow's bool8 stores 2 and 3 for the same True), so it has no class.

**Hash forms** feed the filters. Values that are equal under any width or unit share a form, so int32 5 and int64 5
hash to the same, as do 1 s and 1,000 ms. Collisions between unequal values (uint64 2**64-1 and int64 -1) only cost a
false positive.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrays import binary_array, binary_rows, combine, fixed_rows, from_numpy, offsets_and_data, to_numpy, valid_mask
from .versions import is_nan

SIGN_BIT = np.uint64(1 << 63)
_MAGNITUDE = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_CODE_DECIMAL_DIGITS_MAX = 18
_BINARY_BYTES_MAX = (1 << 31) - 1  # of one array with offsets of 32 bits
_UUID = "arrow.uuid"
_STORED_VALUES = frozenset({_UUID, "arrow.json"})
_STRING_TYPES = (pa.string(), pa.large_string(), pa.string_view())
_BINARY_TYPES = (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))
_NO_OFFSETS_IDS = frozenset(each.id for each in (pa.string_view(), pa.binary_view(), pa.binary(1)))
_BYTES_IDS = frozenset(each.id for each in _STRING_TYPES + _BINARY_TYPES)


def compared_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type in which values are compared and indexed: of a dictionary, that of its values; of an extension
    type known by name, that of its storage; of any other, the type itself, even if `order_class` has none for it."""
    if pa.types.is_dictionary(arrow_type):
        return compared_type(arrow_type.value_type)
    if isinstance(arrow_type, pa.BaseExtensionType) and arrow_type.extension_name in _STORED_VALUES:
        return compared_type(arrow_type.storage_type)
    return arrow_type


def is_uuid(arrow_type: pa.DataType) -> bool:
    """Return whether a type is Arrow's UUID: 16 bytes, most significant first, so its order is that of the bytes."""
    if pa.types.is_dictionary(arrow_type):
        return is_uuid(arrow_type.value_type)
    return isinstance(arrow_type, pa.BaseExtensionType) and arrow_type.extension_name == _UUID


def order_class(arrow_type: pa.DataType) -> str | None:
    """Return "code", "bytes", or None for a type whose values have no order here."""
    arrow_type = compared_type(arrow_type)
    types = pa.types
    if types.is_decimal(arrow_type):
        return "code" if arrow_type.precision <= _CODE_DECIMAL_DIGITS_MAX else "bytes"
    if arrow_type.id in _BYTES_IDS:
        return "bytes"
    is_number = types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_boolean(arrow_type)
    is_time = types.is_temporal(arrow_type) and not types.is_interval(arrow_type)
    return "code" if is_number or is_time else None


def is_bytes_like(arrow_type: pa.DataType) -> bool:
    """Return whether a type is string, binary, a large, view or fixed-size kind of these, or is stored as one."""
    return compared_type(arrow_type).id in _BYTES_IDS


def flatten(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return one plain array: chunks joined, dictionaries decoded, extension types replaced by their storage."""
    if isinstance(array, pa.ChunkedArray):
        array = combine(array)
    while isinstance(array, pa.ExtensionArray) or pa.types.is_dictionary(array.type):
        array = array.storage if isinstance(array, pa.ExtensionArray) else array.dictionary_decode()
    return array


def nan_mask(array: pa.Array) -> np.ndarray | None:
    """Return booleans, True where NaN (nulls are not NaN); None for types that have no NaN."""
    if not pa.types.is_floating(array.type):
        return None
    return to_numpy(is_nan(array))


# -- order codes ------------------------------------------------------------------------------------------------------


def order_codes(array: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return int64 codes that order as the values of a "code" type do; 0 where null. NaN's code is above infinity's."""
    array = flatten(array)
    arrow_type = array.type
    if pa.types.is_floating(arrow_type):
        return _float_codes(_float64(array))
    if pa.types.is_uint64(arrow_type):
        return (_plain_numbers(array) ^ SIGN_BIT).view(np.int64)
    if pa.types.is_decimal(arrow_type):
        return _decimal_words(array)[:, 0].view(np.int64)
    return _int64(array)


def _float_codes(values: np.ndarray) -> np.ndarray:
    bits = _canonical_floats(values).view(np.int64)
    return np.where(bits < 0, bits ^ _MAGNITUDE, bits)


def float_code(value: float) -> int:
    """Return the order code of one float, as `order_codes`, without an array."""
    bits = struct.unpack("<q", struct.pack("<d", value + 0.0 if value == value else float("nan")))[0]
    return bits ^ 0x7FFF_FFFF_FFFF_FFFF if bits < 0 else bits


def order_bytes(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return binary values that order as those of a "bytes" type do, of the large type beyond 2 GB; nulls stay null."""
    array = flatten(array)
    arrow_type = array.type
    if pa.types.is_decimal(arrow_type):
        words = _decimal_words(array).copy()
        words[:, -1] ^= SIGN_BIT
        big_endian = np.ascontiguousarray(words[:, ::-1].byteswap()).view(np.uint8)
        return binary_rows(big_endian, valid_mask(array))
    if pa.types.is_string_view(arrow_type) or pa.types.is_binary_view(arrow_type):
        array = array.cast(pa.large_binary())  # views may share bytes, and pyarrow 18 cannot return their size
    return array.cast(pa.large_binary() if array.nbytes > _BINARY_BYTES_MAX else pa.binary())


# -- values of codes --------------------------------------------------------------------------------------------------


def values_of_codes(codes: np.ndarray, arrow_type: pa.DataType, valid: np.ndarray | None = None) -> pa.Array:
    """Return the values of order codes, in a "code" type: the inverse of `order_codes`; null where not `valid`. A zero
    becomes 0.0, a NaN the canonical one."""
    arrow_type = compared_type(arrow_type)
    if pa.types.is_boolean(arrow_type):
        return from_numpy(codes != 0, valid)
    if pa.types.is_floating(arrow_type):
        floats = np.where(codes < 0, codes ^ _MAGNITUDE, codes).view(np.float64)
        return from_numpy(floats.astype(f"f{arrow_type.bit_width // 8}"), valid)
    if pa.types.is_uint64(arrow_type):
        return from_numpy(codes.view(np.uint64) ^ SIGN_BIT, valid)
    if pa.types.is_decimal(arrow_type):
        return _decimals_of_codes(codes, arrow_type, valid)
    if pa.types.is_temporal(arrow_type):
        return from_numpy(codes.astype(f"i{arrow_type.bit_width // 8}"), valid).view(arrow_type)
    letter = "u" if pa.types.is_unsigned_integer(arrow_type) else "i"
    return from_numpy(codes.astype(f"{letter}{arrow_type.bit_width // 8}"), valid)


def values_of_bytes(stored: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Return the values of order bytes (binary, nulls stay null), in a "bytes" type: the inverse of `order_bytes`.
    Raise ArrowInvalid for bytes that no value of the type has, such as a string's bound cut within a character.
    """
    if pa.types.is_dictionary(arrow_type):
        arrow_type = arrow_type.value_type
    if not pa.types.is_decimal(arrow_type):
        values = stored.cast(compared_type(arrow_type))
        return (
            pa.ExtensionArray.from_storage(arrow_type, values)
            if isinstance(arrow_type, pa.BaseExtensionType)
            else values
        )
    width = arrow_type.bit_width // 8
    valid = valid_mask(stored)
    padded = stored if valid is None else stored.fill_null(binary_array([bytes(width)])[0])
    if len(padded) and pc.any(pc.not_equal(pc.binary_length(padded), width)).as_py():
        raise pa.ArrowInvalid(f"order bytes of {arrow_type} are {width} long")
    big_endian = fixed_rows(padded.cast(pa.binary(width))).view(np.uint64)
    words = np.ascontiguousarray(big_endian[:, ::-1]).byteswap()
    words[:, -1] ^= SIGN_BIT
    return _with_validity(arrow_type, words, valid)


def _decimals_of_codes(codes: np.ndarray, arrow_type: pa.DataType, valid: np.ndarray | None) -> pa.Array:
    if arrow_type.bit_width <= 64:
        return _with_validity(arrow_type, codes.astype(f"i{arrow_type.bit_width // 8}"), valid)
    words = np.empty((len(codes), arrow_type.bit_width // 64), dtype=np.int64)
    words[:, 0] = codes
    words[:, 1:] = (codes >> 63)[:, None]
    return _with_validity(arrow_type, words, valid)


def _with_validity(arrow_type: pa.DataType, values: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    """Return an array of consecutive fixed-width values."""
    bits = None if valid is None else from_numpy(valid).buffers()[1]
    return pa.Array.from_buffers(arrow_type, len(values), [bits, pa.py_buffer(np.ascontiguousarray(values))])


# -- hash forms -------------------------------------------------------------------------------------------------------


class HashForm(NamedTuple):
    """The input of a hash function, value by value.

    name     what equal forms mean: "int", "float", "bytes", "instant", "span", or "decimal:SCALE". Only values of one
             name may be used in one filter.
    fixed    uint64 [n], hashed as 8 little-endian bytes; or None
    wide     uint8 [n, width], hashed row by row; or None
    offsets, data    int64 [n + 1] and uint8 [bytes]: value i is data[offsets[i]:offsets[i + 1]]; or None
    valid    bool [n], False where null (a null has no form: skip it); None if nothing is null
    """

    name: str
    valid: np.ndarray | None
    fixed: np.ndarray | None = None
    wide: np.ndarray | None = None
    offsets: np.ndarray | None = None
    data: np.ndarray | None = None


def hash_name(arrow_type: pa.DataType) -> str | None:
    """Return the name of the hash form of a type; None for a type that cannot be hashed."""
    arrow_type = compared_type(arrow_type)
    if pa.types.is_decimal(arrow_type):
        return f"decimal:{arrow_type.scale}"
    if is_bytes_like(arrow_type):
        return "bytes"
    if pa.types.is_integer(arrow_type) or pa.types.is_boolean(arrow_type):
        return "int"
    if pa.types.is_floating(arrow_type):
        return "float"
    if pa.types.is_timestamp(arrow_type) or pa.types.is_date(arrow_type):
        return "instant"
    if pa.types.is_time(arrow_type) or pa.types.is_duration(arrow_type):
        return "span"
    return None


def hash_form(array: pa.Array | pa.ChunkedArray) -> HashForm:
    """Return the canonical form of each value, ready for hashing. Raises TypeError for a type that cannot be hashed."""
    array = flatten(array)
    arrow_type = array.type
    name = hash_name(arrow_type)
    if name is None:
        raise TypeError(f"values of type {arrow_type} cannot be hashed")
    valid = valid_mask(array)
    if name == "bytes":
        if arrow_type.id in _NO_OFFSETS_IDS:
            array = array.cast(pa.large_binary())
        offsets, buffer = offsets_and_data(array)
        return HashForm(name, valid, offsets=offsets.astype(np.int64), data=np.frombuffer(buffer, dtype=np.uint8))
    if name.startswith("decimal"):
        words = _decimal_words(array)
        return HashForm(name, valid, wide=np.ascontiguousarray(words).view(np.uint8))
    if name == "float":
        return HashForm(name, valid, fixed=_canonical_floats(_float64(array)).view(np.uint64))
    if name in ("instant", "span"):
        return HashForm(name, valid, fixed=_microseconds(array))
    if pa.types.is_uint64(arrow_type):
        return HashForm(name, valid, fixed=_plain_numbers(array))
    return HashForm(name, valid, fixed=_int64(array).view(np.uint64))


def _microseconds(array: pa.Array) -> np.ndarray:
    """Return uint64: microseconds, with the nanoseconds within one in the top bits. Equal instants have equal words in
    any unit. Multiplication wraps, but the word is still a function of the instant."""
    arrow_type = array.type
    values = _int64(array)
    if pa.types.is_date32(arrow_type):
        return (values * np.int64(86_400_000_000)).view(np.uint64)
    unit = "ms" if pa.types.is_date64(arrow_type) else arrow_type.unit
    if unit == "ns":
        microseconds = values // 1000
        rest = values - microseconds * 1000
        return (microseconds + (rest << np.int64(54))).view(np.uint64)
    with np.errstate(over="ignore"):
        return (values * np.int64({"s": 1_000_000, "ms": 1_000, "us": 1}[unit])).view(np.uint64)


# -- buffers ----------------------------------------------------------------------------------------------------------


def _float64(array: pa.Array) -> np.ndarray:
    return _plain_numbers(array.cast(pa.float64()))


def _canonical_floats(values: np.ndarray) -> np.ndarray:
    """Replace -0.0 by 0.0, and every NaN by the one quiet positive NaN."""
    with np.errstate(invalid="ignore"):  # a signalling NaN counts as any other
        values = values + 0.0
    values[np.isnan(values)] = np.nan
    return values


def _int64(array: pa.Array) -> np.ndarray:
    arrow_type = array.type
    if pa.types.is_temporal(arrow_type):
        array = array.view(pa.int32() if arrow_type.bit_width == 32 else pa.int64())
    return _plain_numbers(array.cast(pa.int64()))


def _plain_numbers(array: pa.Array) -> np.ndarray:
    """Return the numbers of a primitive array as numpy, 0 where null (values under nulls are undefined)."""
    valid = valid_mask(array)
    values = to_numpy(array)
    return values if valid is None else np.where(valid, values, values.dtype.type(0))


def _decimal_words(array: pa.Array) -> np.ndarray:
    """Return uint64 [n, 2 or 4]: the unscaled values, least significant word first, sign-extended; 0 where null."""
    arrow_type = array.type
    if arrow_type.bit_width < 128:
        array = array.cast(pa.decimal128(arrow_type.precision, arrow_type.scale))
    words = fixed_rows(array).view(np.uint64)
    valid = valid_mask(array)
    return words if valid is None else words * valid[:, None].astype(np.uint64)
