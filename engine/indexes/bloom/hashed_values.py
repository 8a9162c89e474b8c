"""What a filter hashed, and the hashes to probe it with.

A filter records a name of what it hashed. Ours hash canonical values: the name is `canon.hash_name` of the type that
the file was indexed in. Parquet's own hash what the file stores: the name is "parquet:" and the physical type, and,
where the stored numbers count something, a blank and what: "parquet:INT64 timestamp[us]", "parquet:INT32 decimal[2]",
"parquet:FIXED_LEN_BYTE_ARRAY decimal[2,8]" (scale, and bytes of a number, big endian).

| a file's type | Parquet's filter |
| --- | --- |
| integers | INT32, INT64: the low bits, as that file stores them |
| float, double | FLOAT, DOUBLE: both zeros are looked up, NaN is unknown |
| strings, binaries | BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY: the bytes |
| date32 | INT32: days |
| timestamps, times | INT32, INT64: counts of the unit that file and column have; another unit is not looked up |
| duration | INT64: counts of its unit |
| decimals | INT32, INT64, FIXED_LEN_BYTE_ARRAY: the unscaled number |
| bool, half floats, INT96, decimals as BYTE_ARRAY | none is believed: equal values may differ in bytes |

A value of another kind than the filter's is not looked up: it may be there. One that has no equal among what the file
can hold is absent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ....base import canon
from ....base.arrays import binary_rows, from_numpy, to_numpy
from ....bloom import Probes, hash_raw, probes_for
from ....errors import InvalidArgumentError

_PREFIX = "parquet:"
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_PARQUET_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_COUNT = re.compile(r"(timestamp|time|duration)\[(s|ms|us|ns)\]")
_DECIMAL = re.compile(r"decimal\[(-?\d{1,3})(?:,(\d{1,2}))?\]")
_FAMILIES: dict[str, Callable[[pa.DataType], bool]] = {
    "timestamp": pa.types.is_timestamp,
    "time": pa.types.is_time,
    "duration": pa.types.is_duration,
}


def filter_hash(name: str) -> str:
    """The name under which `bloom` knows the hashes of filters of that name: those alone may share a group."""
    return name.partition(" ")[0]


def hash_probes(values: pa.Array, name: str) -> Probes | None:
    """The probes of a filter of that name, for values without nulls; None where it cannot decide."""
    hashed, _, meaning = name.partition(" ")
    try:
        if not meaning:
            return probes_for(values, hashed)
        if counted := _COUNT.fullmatch(meaning):
            return _counts(values, hashed, counted[1], counted[2])
        if decimal := _DECIMAL.fullmatch(meaning):
            return _decimals(values, hashed, int(decimal[1]), int(decimal[2] or 0))
    except InvalidArgumentError:  # values of a kind that it does not hold
        return None
    return None


def stored_name(kind: pa.DataType, column: Any) -> str | None:
    """The name of what Parquet's filter of a column hashed; None where it is not to be believed.

    Args:
        kind: the Arrow type in which the column is read from that file.
        column: pyarrow's ColumnSchema of that file.
    """
    physical = column.physical_type
    name = _PREFIX + physical
    logical = json.loads(column.logical_type.to_json())
    if canon.is_bytes_like(kind):
        is_text = logical["Type"] in ("None", "String", "JSON", "BSON", "Enum", "UUID")
        return name if physical in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") and is_text else None
    if pa.types.is_decimal(kind):
        if logical["Type"] != "Decimal" or logical["scale"] != kind.scale:
            return None
        if physical == "FIXED_LEN_BYTE_ARRAY" and 0 < column.length <= 32:
            return f"{name} decimal[{kind.scale},{column.length}]"
        return f"{name} decimal[{kind.scale}]" if physical in ("INT32", "INT64") else None
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return name if physical == ("FLOAT" if pa.types.is_float32(kind) else "DOUBLE") else None
    if physical not in ("INT32", "INT64"):
        return None
    if pa.types.is_integer(kind):
        return name if logical["Type"] in ("None", "Int") else None
    if pa.types.is_date32(kind):
        return name if logical["Type"] == "Date" and physical == "INT32" else None
    for family, is_of in _FAMILIES.items():
        if is_of(kind):
            unit = kind.unit if family == "duration" else _PARQUET_UNITS.get(logical.get("timeUnit", ""))
            fits = logical["Type"] == {"timestamp": "Timestamp", "time": "Time", "duration": "None"}[family]
            return f"{name} {family}[{unit}]" if fits and unit == kind.unit else None
    return None


def _counts(values: pa.Array, hashed: str, family: str, unit: str) -> Probes | None:
    """Of timestamps, times or durations, as counts of a unit."""
    kind = values.type
    if not _FAMILIES[family](kind):
        return None
    numbers = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    per_second, stored_per_second = _UNITS[kind.unit], _UNITS[unit]
    counts = [count * stored_per_second for count in to_numpy(numbers).tolist()]
    return _exact_integers(
        [(count // per_second, count % per_second == 0) for count in counts], hashed, 4 if "32" in hashed else 8
    )


def _decimals(values: pa.Array, hashed: str, scale: int, width: int) -> Probes | None:
    kind = values.type
    if not pa.types.is_decimal(kind):
        return None
    wide = canon.hash_form(values).wide
    assert wide is not None
    factor = 10 ** abs(scale - kind.scale)
    numbers = [int.from_bytes(row.tobytes(), "little", signed=True) for row in wide]
    if scale >= kind.scale:
        scaled = [(number * factor, True) for number in numbers]
    else:
        scaled = [(number // factor, number % factor == 0) for number in numbers]
    return _exact_integers(scaled, hashed, width or (4 if "32" in hashed else 8), is_bytes=width > 0)


def _exact_integers(integers: list[tuple[int, bool]], hashed: str, width: int, *, is_bytes: bool = False) -> Probes:
    """Integers as the file stores them, in so many bytes; those that are not exact, or do not fit, are absent."""
    bound = 1 << (8 * width - 1)
    fits = [is_exact and -bound <= number < bound for number, is_exact in integers]
    fitting = [number if ok else 0 for (number, _), ok in zip(integers, fits, strict=True)]
    if is_bytes:
        data = b"".join(number.to_bytes(width, "big", signed=True) for number in fitting)
        stored: pa.Array = binary_rows(np.frombuffer(data, dtype=np.uint8).reshape(len(fitting), width))
    else:
        stored = from_numpy(np.array(fitting, dtype=np.int64))
    return Probes(hash_raw(stored, hashed).hashes, absent=~np.array(fits, dtype=bool))
