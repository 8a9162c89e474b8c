"""Hive partitioning: `year=2013/month=1` in a path, as Hive and Spark write and read it.

A partition is identified by its text in the path (`region=a%2Fb`). Values are returned typed: declared types are used,
others are inferred over all values of a key (`inferred`). Keys that differ only in case are one key, in its first
spelling. Folders below or between those of partitions mean nothing. A file that is next to the partitions has null in
every key: Spark would skip it, and its rows would be lost.

Types of partition columns, inferred from the texts in paths as Spark infers them.

    1, -5, +5, 001                  int, else bigint, else decimal of as many digits: leading zeros are not kept
    1e5, 5.                         decimal: whole numbers
    1.5, .5, 1e-3, NaN, Infinity    double
    2020-01-31                      date
    2020-01-31 10:00:00, ....5      timestamp, here without a zone: Spark's is in the zone of the session
    anything else                   string

The type of several texts is the widest of int, bigint and decimal; int and double give double; date and timestamp give
timestamp; all else gives string, bigint and double too, because a double cannot represent every bigint.

If a type would lose values, Spark uses it and Skipstone does not: numbers of more than 38 digits, or beyond double's
range, stay texts, and so do 1d, 1f, 0x1p3 and numbers with spaces around them, which Java reads as doubles.

A log distinguishes an empty text from null, so its partitions have a separate spelling (`partition_texts`): an empty
text is `p=`, and Hive's name for null is only that name if it is a value.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import from_numpy, offsets_and_data, string_array, string_pieces
from ..errors import SchemaError

_INTEGER = re.compile(r"[+-]?\d+\Z", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_SPECIAL = {"NaN", "Infinity", "+Infinity", "-Infinity"}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z", re.ASCII)
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d)?\Z", re.ASCII)
_NUMBER_CHARACTERS_MAX = 400  # no type can represent a longer number
_DECIMAL_DIGITS_MAX = 38
_INTEGER_DIGITS = {pa.int32(): 10, pa.int64(): 20}  # of the decimals that contain them, as in Spark


def inferred(texts: Iterable[str]) -> pa.DataType:
    """Return the type that can represent all of some values; string if there are no values."""
    kinds = {_of_one(text) for text in texts}
    return _common(kinds) if kinds else pa.string()


def plain_texts(texts: Sequence[str | None], kind: pa.DataType) -> Sequence[str | None]:
    """Return texts of numbers as Arrow casts them to a type: without plus, and for decimals without exponents."""
    if pa.types.is_decimal(kind):
        return [text if text is None or not _is_number(text) else format(Decimal(text), "f") for text in texts]
    if pa.types.is_integer(kind):
        return [text if text is None else text.removeprefix("+") for text in texts]
    return texts


def _of_one(text: str) -> pa.DataType:
    if _is_number(text):
        return _of_number(text)
    if text in _SPECIAL:
        return pa.float64()
    if _DATE.match(text) and _parses(text):
        return pa.date32()
    return pa.timestamp("us") if _TIMESTAMP.match(text) and _parses(text) else pa.string()


def _is_number(text: str) -> bool:
    return len(text) <= _NUMBER_CHARACTERS_MAX and _NUMBER.match(text) is not None


def _of_number(text: str) -> pa.DataType:
    if _INTEGER.match(text):
        number = int(text)
        if -(1 << 31) <= number < 1 << 31:
            return pa.int32()
        if -(1 << 63) <= number < 1 << 63:
            return pa.int64()
    _, digits, exponent = Decimal(text).as_tuple()
    assert isinstance(exponent, int)
    if exponent >= 0:
        digit_count = len(digits) + exponent
        return pa.decimal128(digit_count, 0) if digit_count <= _DECIMAL_DIGITS_MAX else pa.string()
    return pa.float64() if math.isfinite(float(text)) else pa.string()


def _common(kinds: set[pa.DataType]) -> pa.DataType:
    if len(kinds) == 1:
        return next(iter(kinds))
    if all(kind in _INTEGER_DIGITS or pa.types.is_decimal(kind) for kind in kinds):
        if kinds == set(_INTEGER_DIGITS):
            return pa.int64()
        return pa.decimal128(max(_INTEGER_DIGITS.get(kind) or kind.precision for kind in kinds), 0)
    if kinds == {pa.int32(), pa.float64()}:
        return pa.float64()
    if kinds == {pa.date32(), pa.timestamp("us")}:
        return pa.timestamp("us")
    return pa.string()


def _parses(text: str) -> bool:
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_ESCAPED = set("\"#%'*/:=?\\{[]^\x7f") | {chr(c) for c in range(32)}
_HEX_PAIR = re.compile(r"%[0-9A-Fa-f]{2}")


def partition_of(path: str) -> str:
    """Return the partition text of a file's path: its `key=value` folders, joined; "" if it has none."""
    return "/".join(part for part in path.split("/")[:-1] if "=" in part[1:])


def split(partition: str) -> list[tuple[str, str | None]]:
    """Return (key, text value or None for null) of each level of a partition text."""
    if not partition:
        return []
    pairs = []
    for level in partition.split("/"):
        key, _, value = level.partition("=")
        pairs.append((unescape(key), None if value == NULL_VALUE else unescape(value)))
    return pairs


def join(pairs: Iterable[tuple[str, object]]) -> str:
    """Return the partition text of (key, value) pairs, escaped as in Hive. None and "" become the null partition."""
    levels = []
    for key, value in pairs:
        text = value_text(value)
        levels.append(f"{escape(key)}={NULL_VALUE if text in (None, '') else escape(text)}")
    return "/".join(levels)


def escape(text: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)


def unescape(text: str) -> str:
    # A "%" without a hex pair after it is literal. `unquote` would also keep it, but not decode byte by byte as Spark
    # does, so undecodable bytes are kept as the characters that they name.
    return unquote(text, errors="strict") if _is_utf8(text) else _HEX_PAIR.sub(lambda m: chr(int(m[0][1:], 16)), text)


def _is_utf8(text: str) -> bool:
    try:
        unquote(text, errors="strict")
    except UnicodeDecodeError:
        return False
    return True


def value_text(value: object) -> str | None:
    """Return the text of a value in a path, before it is escaped."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else _NOT_FINITE[repr(value)]
    if isinstance(value, dt.datetime):
        text = value.isoformat(sep=" ")
        return text.rstrip("0") if value.microsecond and value.tzinfo is None else text
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return str(value)


def infer_types(partitions: Sequence[str]) -> list[pa.Field]:
    """Return one field per partition key. Raises SchemaError if the paths have different keys, name one twice, or leave
    a value empty."""
    named = [partition for partition in partitions if partition]
    if not named:
        return []
    keys = [key for key, _ in split(named[0])]
    if len({key.lower() for key in keys}) < len(keys):
        message = f"partition {named[0]!r} names a key twice; rename a folder, or index with partitioning=None"
        raise SchemaError(message)
    values: list[set[str]] = [set() for _ in keys]
    for partition in named:
        pairs = split(partition)
        if not _are_keys(pairs, keys):
            raise SchemaError(
                f"partition folders do not agree: {named[0]!r} and {partition!r} have "
                "other keys; index each level by itself, or name the files with files="
            )
        for texts, (key, value) in zip(values, pairs, strict=True):
            if value == "":
                raise SchemaError(
                    f"partition {partition!r} has no value for {key!r}: no writer makes such a folder, an empty text "
                    f"is {NULL_VALUE} as null is; rename it, or declare types with partitioning=pa.schema(...)"
                )
            if value is not None:
                texts.add(value)
    return [pa.field(key, inferred(texts)) for key, texts in zip(keys, values, strict=True)]


def _are_keys(pairs: Sequence[tuple[str, str | None]], keys: Sequence[str]) -> bool:
    return [key.lower() for key, _ in pairs] == [key.lower() for key in keys]


def typed_values(partitions: Sequence[str], fields: Sequence[pa.Field]) -> list[pa.Array]:
    """Return one array per key, with one value per partition. SchemaError names the partition of a bad value."""
    texts: list[list[str | None]] = [[] for _ in fields]
    for partition in partitions:
        pairs = split(partition) if partition else [(f.name, None) for f in fields]
        if not _are_keys(pairs, [f.name for f in fields]):
            keys = ", ".join(f.name for f in fields) or "none"
            raise SchemaError(f"partition {partition!r} does not have the table's keys ({keys})")
        for column, (_, value) in zip(texts, pairs, strict=True):
            column.append(value)
    return [_typed(column, field, partitions) for column, field in zip(texts, fields, strict=True)]


def typed_columns(partitions: pa.StringArray, fields: Sequence[pa.Field]) -> list[pa.Array]:
    """Like `typed_values`, but in one step if no text is escaped."""
    values = _plain_values(partitions, fields)
    if values is not None:
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return [text.cast(field.type) for text, field in zip(values, fields, strict=True)]
    return typed_values(partitions.to_pylist(), fields)


def _plain_values(partitions: pa.StringArray, fields: Sequence[pa.Field]) -> list[pa.StringArray] | None:
    """Return the text of each key in each partition; None if some are escaped or null, keys differ, or Arrow casts a
    type in another way."""
    offsets, buffer = offsets_and_data(partitions)
    data = bytes(buffer[int(offsets[0]) : int(offsets[-1])])
    is_plain = not any(odd in data for odd in (b"%", NULL_VALUE.encode()))
    if not is_plain or not len(partitions) or any(pa.types.is_boolean(field.type) for field in fields):
        return None
    ends = (offsets[1:] - offsets[0]).astype(np.int64)
    starts = ends - np.diff(offsets)
    characters = np.frombuffer(data, dtype=np.uint8)
    slashes = np.flatnonzero(characters == ord("/"))
    levels = np.searchsorted(slashes, ends) - np.searchsorted(slashes, starts)
    if not fields or (levels != len(fields) - 1).any():
        return None
    bounds = np.column_stack([starts, slashes.reshape(len(partitions), -1) + 1, ends + 1])
    columns = []
    for level, field in enumerate(fields):
        begins, length = bounds[:, level], bounds[:, level + 1] - bounds[:, level] - 1
        head = np.frombuffer(f"{field.name}=".encode(), dtype=np.uint8)
        if (length < len(head)).any() or (characters[begins[:, None] + np.arange(len(head))] != head).any():
            return None
        columns.append(string_pieces(characters, begins + len(head), length - len(head)))
    return columns


def _typed(texts: list[str | None], field: pa.Field, partitions: Sequence[str]) -> pa.Array:
    try:
        return typed_texts(texts, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
        for text, partition in zip(texts, partitions, strict=True):
            try:
                typed_texts([text], field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
                raise SchemaError(
                    f"partition {partition!r}: {text!r} is not a {field.type}, the type of partition column "
                    f"{field.name!r}; declare it with partitioning=pa.schema(...), or move the files"
                ) from None
        raise


def typed_texts(texts: list[str | None], kind: pa.DataType) -> pa.Array:
    """Return values from their texts. Raises an Arrow error, or ValueError, for a text that is not of the type."""
    if pa.types.is_boolean(kind):
        if not {"true", "false", None}.issuperset(texts):
            raise ValueError("not a boolean")
        values, given = np.array([t == "true" for t in texts]), np.array([t is not None for t in texts])
        return from_numpy(values.astype(bool), given.astype(bool))
    return string_array(plain_texts(texts, kind)).cast(kind)


def partition_texts(names: Sequence[str], values: Sequence[pa.Array | pa.ChunkedArray], count: int) -> pa.Array:
    """Return one text per file, from one typed array per partition column, each of `count` values."""
    if not names:
        return pa.array([""] * count, pa.string())
    levels = [_level(name, column) for name, column in zip(names, values, strict=True)]
    return levels[0] if len(levels) == 1 else pc.binary_join_element_wise(*levels, "/")


def _level(name: str, column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    coded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column, null_encoding="encode")
    texts = [f"{escape(name)}={_value(value)}" for value in _spelled(coded.dictionary)]
    return pa.array(texts, pa.string()).take(coded.indices)


def _spelled(values: pa.Array) -> list[object]:
    if pa.types.is_timestamp(values.type):  # not by Python, which has no nanoseconds
        return values.cast(pa.string()).to_pylist()
    return values.to_pylist()


def _value(value: object) -> str:
    if value is None:
        return NULL_VALUE
    if value == NULL_VALUE:
        return f"%5F{NULL_VALUE[1:]}"
    return escape(value_text(value) or "")
