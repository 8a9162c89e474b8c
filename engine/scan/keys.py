"""Converts the keys of a look-up to the types of the columns, and encodes them as sorted bytes.

A key becomes the one value of the column that is equal to it, or null if there is none. Nothing is rounded: 0.123 is no
value of a decimal(10, 2). `predicates.coerce` defines what is equal, key by key. Common types of keys are converted as
arrays here, with the same result.

A float may equal several values of a wide decimal column, because the comparison is one of doubles. Then the keys stay
doubles, and the column's values are converted to doubles (`doubles_of`).
"""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import binary_array, binary_rows, from_numpy, string_array, take_keys, to_numpy, valid_mask
from ...base.ordered_keys import OrderedCode, ordered_class
from ...bloom import hash_array
from ...errors import InvalidArgumentError, PredicateError, SchemaError
from ...hfile_like.key_sort import sorted_keys
from ..predicates.bind import locate_in
from ..predicates.bound import ColumnRef
from ..predicates.coerce import NoMeaningError, array_of, is_text, ns_per_count
from ..predicates.literals import UUID_BYTES, literal_sql, literal_value

_USUAL_UUID = r"\A[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\z"
_TABLE_BITS_A_KEY = 8
_INT64_END, _UINT64_END = 2.0**63, 2.0**64


@dataclass
class KeySet:
    """Distinct tuples of values, none of them null.

    code       how they are encoded
    columns    the table's columns that they are values of, or whose values as doubles they are
    encoded    ascending, each once
    place      int64: of each, the row of the keys as they were given (the first of equal ones)
    """

    code: OrderedCode
    columns: list[str]
    encoded: pa.BinaryArray
    place: np.ndarray

    def __post_init__(self) -> None:
        hashes = hash_array(self.encoded).hashes
        self._order = np.argsort(hashes)
        self._hashes = hashes[self._order]
        # A small table of their first bits excludes most others. A search in all hashes waits for memory at each step.
        self._shift = np.uint64(64 - max(1, (_TABLE_BITS_A_KEY * len(hashes)).bit_length()))
        self._is_begun = np.zeros(1 << (64 - int(self._shift)), dtype=bool)
        self._is_begun[self._hashes >> self._shift] = True
        again = np.flatnonzero(self._hashes[1:] == self._hashes[:-1]) if len(hashes) else np.empty(0, dtype=np.int64)
        # Keys of one hash, should there ever be some: these are compared as they are.
        numbers = self._order[np.union1d(again, again + 1)].tolist()
        self._alike = {self.encoded[number].as_py(): number for number in numbers}

    def __len__(self) -> int:
        return len(self.encoded)

    def contains(self, values: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray:
        """bool [n]: the tuple of `values`, a column each, is one of the keys."""
        pairs = zip(values, self.code.kinds, strict=True)
        compared = [doubles_of(array) if is_rounded(array.type, kind) else array for array, kind in pairs]
        return self.find(self.code.encode(compared)) >= 0

    def find(self, encoded: pa.Array) -> np.ndarray:
        """int64 [n]: the row of the keys, as they were given, that has each encoded key; -1 if there is none."""
        found = np.full(len(encoded), -1, dtype=np.int64)
        if not len(self) or not len(encoded):
            return found
        hashes = hash_array(encoded).hashes
        maybe = np.flatnonzero(self._is_begun[hashes >> self._shift])
        maybe = maybe[np.argsort(hashes[maybe])]  # a search for ascending values waits less for memory
        hashes = hashes[maybe]
        positions = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        is_equal = self._hashes[positions] == hashes
        maybe, numbers = maybe[is_equal], self._order[positions[is_equal]]
        is_same = to_numpy(pc.equal(take_keys(encoded, maybe), take_keys(self.encoded, numbers)))
        found[maybe[is_same]] = self.place[numbers[is_same]]
        for i in maybe[~is_same].tolist() if self._alike else ():
            number = self._alike.get(encoded[i].as_py())
            if number is not None:
                found[i] = self.place[number]
        return found


def is_rounded(dtype: pa.DataType, compared_as: pa.DataType) -> bool:
    """Whether a column's values are made doubles before they are compared."""
    return pa.types.is_decimal(dtype) and pa.types.is_floating(compared_as)


def key_set(keys: pa.Table, kinds: Sequence[pa.DataType]) -> KeySet:
    """Return the tuples of a table of keys. Its columns have the table's column names; `kinds` are the types there.
    Tuples with a null are left out: null equals nothing. Keys and columns may have different types of numbers,
    timestamps and bytes.

    Raises SchemaError for types that are not compared, and for a float that is several values of a decimal column.
    """
    return key_set_of(pa.table(_key_columns(keys, kinds), names=keys.column_names), kinds)


def encoded_keys(keys: pa.Table, kinds: Sequence[pa.DataType]) -> pa.Array:
    """binary [n]: the encoded key of each row of a table of keys, equal if `=` is true for every column; null if a
    row contains a null, or a value that no value of the columns equals. Arguments and errors as of `key_set`."""
    columns = _key_columns(keys, kinds)
    is_complete = np.logical_and.reduce([to_numpy(column.is_valid()) for column in columns])
    if is_complete.all():
        return OrderedCode(list(kinds)).encode(columns)
    encoded = OrderedCode(list(kinds)).encode([column.filter(from_numpy(is_complete)) for column in columns])
    places = np.where(is_complete, np.cumsum(is_complete) - 1, 0)
    return encoded.take(from_numpy(places, is_complete))


def _key_columns(keys: pa.Table, kinds: Sequence[pa.DataType]) -> list[pa.Array]:
    """The columns of keys as values of the table's."""
    columns = []
    for name, kind in zip(keys.column_names, kinds, strict=True):
        ref = ColumnRef(name, (name,), canon.compared_type(kind), canon.is_uuid(kind))
        column = values_in_column(keys.column(name), ref, reads_text=False)
        if is_rounded(kind, column.type):
            raise SchemaError(f"keys of {name!r} are floats, of which one is several values of {kind}: cast them to it")
        columns.append(column)
    return columns


def key_set_of(keys: pa.Table, kinds: Sequence[pa.DataType]) -> KeySet:
    """`key_set` of keys that `values_in_column` gave, of the columns' classes, or doubles for decimals."""
    columns = keys.columns
    code = OrderedCode(
        [pa.float64() if is_rounded(kind, c.type) else kind for c, kind in zip(columns, kinds, strict=True)]
    )
    is_complete = np.logical_and.reduce([to_numpy(column.is_valid()) for column in columns])
    key_rows = np.flatnonzero(is_complete)
    encoded = code.encode([column.filter(from_numpy(is_complete)) for column in columns])
    order, is_repeat = sorted_keys(encoded)
    order = order[~is_repeat]
    return KeySet(code, keys.column_names, take_keys(encoded, order), key_rows[order])


def keys_table(keys: object, on: str | Sequence[str] | None) -> pa.Table:
    """Keys in the forms that people have, as a table of the columns that they are looked up in: a table, batch, or
    whatever exports the Arrow C stream (then `on` chooses columns, all by default), or an array, or a list, of values
    of the one column `on`."""
    names = None if on is None else list(on) if isinstance(on, Iterable) and not isinstance(on, str) else [on]
    for name in names or ():
        if not isinstance(name, str):
            raise InvalidArgumentError(f"on= accepts names of columns, not {name!r}: lookup(keys, on='id')")
    table = _table(keys, names)
    missing = [name for name in names or [] if name not in table.column_names]
    if missing:
        raise SchemaError(f"the keys have no column {missing[0]!r}; they have {', '.join(table.column_names)}")
    chosen = table if names is None else table.select(names)
    if not chosen.num_columns or len(set(chosen.column_names)) < chosen.num_columns:
        raise InvalidArgumentError("keys need one column or more, each of another name")
    return chosen


def _table(keys: Any, names: list[str] | None) -> pa.Table:
    if isinstance(keys, pa.Table):
        return keys
    if isinstance(keys, pa.RecordBatch):
        return pa.Table.from_batches([keys])
    if not isinstance(keys, (pa.Array, pa.ChunkedArray)) and hasattr(keys, "__arrow_c_stream__"):
        return pa.table(keys)
    if names is None or len(names) != 1:
        raise InvalidArgumentError("keys that are values of one column need its name: on=")
    if not isinstance(keys, (pa.Array, pa.ChunkedArray)):
        try:
            keys = _array(keys)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(f"keys are a table, or an array of values: {error}") from None
    try:
        return pa.table({names[0]: keys})
    except UnicodeEncodeError:
        raise SchemaError(f"no column {names[0]!r} to look keys up in") from None


def _array(keys: Iterable[Any]) -> pa.Array:
    first = next((key for key in keys if key is not None), None) if isinstance(keys, list | tuple | set) else None
    if not isinstance(first, uuid.UUID):
        return _plain_array(list(keys)) if isinstance(keys, list | tuple | set) else pa.array(keys)
    # pyarrow 23 and older make no array of UUID objects.
    raw = pa.array([key.bytes if isinstance(key, uuid.UUID) else key for key in keys], pa.binary(16))
    return pa.ExtensionArray.from_storage(pa.uuid(), raw)


def _plain_array(keys: Sequence[Any]) -> pa.Array:
    """The array that `pa.array` makes, which imports pandas; most lists need no such import."""
    kinds = set(map(type, keys))
    if kinds and kinds <= {str, type(None)} and str in kinds:
        return string_array(keys)
    if kinds == {bytes}:
        return binary_array(keys)
    for dtype in (np.int64, np.uint64) if kinds == {int} else (np.float64,) if kinds == {float} else ():
        with contextlib.suppress(OverflowError):
            return from_numpy(np.array(keys, dtype=dtype))
    if any(hasattr(kind, "nanosecond") or hasattr(kind, "nanoseconds") for kind in kinds):
        keys = sys.modules["pandas"].Index(keys)  # `pa.array` would cut the nanoseconds of its times and durations
    return pa.array(keys)


# -- values of a column ------------------------------------------------------------------------------------------------


def values_in_column(keys: pa.ChunkedArray, ref: ColumnRef, *, reads_text: bool = True) -> pa.Array:
    """The keys as values of a column: of a type of its class (`ordered_class`), or doubles if a key equals several
    of its decimals. Without `reads_text`, keys of another type must be numbers for a column of numbers, timestamps
    for one of timestamps, bytes for one of bytes.

    Raises SchemaError for keys that cannot be compared with the column.
    """
    try:
        array = _plain(keys)
        if pa.types.is_null(array.type):
            return _plain(pa.nulls(len(array), ref.type))
        if canon.order_class(keys.type) is None:
            raise _other_type(keys.type, ref, "which is no type of a key")
        if not _is_compared(keys.type, ref, reads_text):
            raise _other_type(keys.type, ref, "cast them")
        return _converted(array, canon.is_uuid(keys.type), ref)
    except NoMeaningError as error:
        raise _other_type(keys.type, ref, f"{literal_sql(error.value)} cannot be compared with it") from None
    except (pa.ArrowException, PredicateError) as error:
        raise _other_type(keys.type, ref, f"cast them: {str(error).splitlines()[0]}") from None


def _plain(keys: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Keys in a type that Arrow can filter, take and count: no views, half floats or narrow decimals."""
    array = canon.flatten(keys)
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        return array.cast(pa.large_string() if is_text(array.type) else pa.large_binary())
    if pa.types.is_decimal(array.type) and array.type.bit_width < 128:
        return array.cast(pa.decimal128(array.type.precision, array.type.scale))
    return array.cast(pa.float32()) if pa.types.is_float16(array.type) else array


def _other_type(dtype: pa.DataType, ref: ColumnRef, what: str) -> SchemaError:
    shown = "uuid" if ref.is_uuid else str(ref.type)
    return SchemaError(f"keys of {ref.name!r} are {dtype}, the column is {shown}: {what}")


def _is_compared(dtype: pa.DataType, ref: ColumnRef, reads_text: bool) -> bool:
    """Whether `=` has a meaning between keys of a type and a column, whatever their values."""
    if ordered_class(dtype) == ordered_class(ref.type) and canon.is_uuid(dtype) == ref.is_uuid:
        return True
    if _is_number(dtype) and _is_number(ref.type):
        return True
    if pa.types.is_timestamp(dtype) and pa.types.is_timestamp(ref.type):
        return True
    if canon.is_bytes_like(ref.type) and canon.is_bytes_like(dtype):
        return reads_text or not (is_text(canon.compared_type(dtype)) or is_text(ref.type))
    if not reads_text or canon.is_bytes_like(ref.type):
        return False
    counts = ns_per_count(dtype), ns_per_count(ref.type)
    if counts[0] is not None and counts[1] is not None:
        return counts[0][0] == counts[1][0]
    return is_text(canon.compared_type(dtype)) or (pa.types.is_boolean(ref.type) and pa.types.is_integer(dtype))


def _is_number(dtype: pa.DataType) -> bool:
    return pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)


def _converted(keys: pa.Array, are_uuids: bool, ref: ColumnRef) -> pa.Array:
    kind, column = keys.type, ref.type
    is_same = ordered_class(kind) == ordered_class(column)
    if ref.is_uuid or are_uuids:
        if is_same and are_uuids:
            return keys
        converted = _texts_in_uuids(keys) if ref.is_uuid and is_text(kind) else None
        return _by_literals(keys, are_uuids, ref) if converted is None else converted
    if canon.is_bytes_like(column):
        return _bytes_in(keys, column)
    if is_same:
        return keys
    if ns_per_count(column) is not None and ns_per_count(kind) is not None:
        return _counts_in(keys, column)
    if pa.types.is_floating(kind) and pa.types.is_integer(column):
        return _floats_in_integers(keys, column)
    return _by_literals(keys, are_uuids, ref)


# -- key by key -------------------------------------------------------------------------------------------------------


def _by_literals(keys: pa.Array, are_uuids: bool, ref: ColumnRef) -> pa.Array:
    coded = keys.dictionary_encode()
    distinct = coded.dictionary
    scalars = pa.ExtensionArray.from_storage(pa.uuid(), distinct) if are_uuids else distinct
    raws, has_value = [], np.zeros(len(distinct), dtype=bool)
    for i, scalar in enumerate(scalars):
        value = literal_value(scalar)
        if value is None:
            continue
        place = locate_in(ref, value)
        if place.where == "span":
            return keys.cast(pa.float64())
        has_value[i] = place.where == "exact"
        if has_value[i]:
            raws.append(place.low)
    places = from_numpy(np.where(has_value, np.cumsum(has_value) - 1, 0), has_value).take(coded.indices)
    return _plain(array_of(raws, ref.type)).take(places)


# -- as arrays --------------------------------------------------------------------------------------------------------


def _only(values: np.ndarray, is_equal: np.ndarray, keys: pa.Array) -> pa.Array:
    """Values as an array, null if the key was, or equals none."""
    valid = valid_mask(keys)
    return from_numpy(values, is_equal if valid is None else is_equal & valid)


def _bytes_in(keys: pa.Array, column: pa.DataType) -> pa.Array:
    if is_text(column) and not is_text(keys.type):
        return canon.order_bytes(keys).cast(pa.large_string())  # or it raises: a text is UTF-8
    if not pa.types.is_fixed_size_binary(column):
        return canon.order_bytes(keys) if pa.types.is_fixed_size_binary(keys.type) else keys
    stored = canon.order_bytes(keys)
    fits = pc.equal(pc.binary_length(stored), column.byte_width)
    return pc.if_else(fits, stored, pa.nulls(len(stored), stored.type)).cast(column)


def _texts_in_uuids(keys: pa.Array) -> pa.Array | None:
    """The bytes of UUIDs in their usual form; None if some text is of another, or is no UUID."""
    if not pc.all(pc.match_substring_regex(keys, _USUAL_UUID)).as_py():
        return None
    digits = pc.replace_substring(keys.drop_null(), "-", "")
    stored = np.frombuffer(bytes.fromhex("".join(digits.to_pylist())), dtype=np.uint8).reshape(-1, UUID_BYTES)
    valid = valid_mask(keys)
    if valid is None:
        return binary_rows(stored).cast(pa.binary(UUID_BYTES))
    rows = np.zeros((len(keys), UUID_BYTES), dtype=np.uint8)
    rows[valid] = stored
    return binary_rows(rows, valid).cast(pa.binary(UUID_BYTES))


def _counts_in(keys: pa.Array, column: pa.DataType) -> pa.Array:
    """Counts of time in the column's unit."""
    units = [unit[1] for kind in (keys.type, column) if (unit := ns_per_count(kind)) is not None]
    counts = canon.order_codes(keys)
    low, high = (-(2 ** (column.bit_width - 1)), 2 ** (column.bit_width - 1) - 1)
    if units[0] >= units[1]:
        ratio = units[0] // units[1]
        fits = (counts >= -(-low // ratio)) & (counts <= high // ratio)
        converted = np.where(fits, counts, 0) * ratio
    else:
        ratio = units[1] // units[0]
        converted = counts // ratio
        fits = (counts % ratio == 0) & (converted >= low) & (converted <= high)
        converted = np.where(fits, converted, 0)
    valid = valid_mask(keys)
    return canon.values_of_codes(converted, column, fits if valid is None else fits & valid)


def _floats_in_integers(keys: pa.Array, column: pa.DataType) -> pa.Array:
    floats = to_numpy(keys.cast(pa.float64()))
    low, end = (0.0, _UINT64_END) if pa.types.is_uint64(column) else (-_INT64_END, _INT64_END)
    fits = (floats >= low) & (floats < end) & (np.floor(floats) == floats)
    return _only(np.where(fits, floats, 0).astype(np.uint64 if low == 0 else np.int64), fits, keys)


def doubles_of(decimals: pa.Array) -> pa.Array:
    """float64: the doubles nearest to decimals."""
    return pa.array([None if value is None else float(value) for value in decimals.to_pylist()], pa.float64())
