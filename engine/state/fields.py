"""The JSON of an index: tables of fields with their types and bounds, and the parser that enforces them.

An index may have an untrusted source, so every field of an instant is checked here before it is used. `parse_json`
bounds the text. Then a field converts each value into what the code uses, or raises FieldError. A field is a function
of one JSON value; `instant_fields.py` combines those of an instant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from ...base.arrays import is_utf8
from ..storage.interface import leads_out

Field = Callable[[Any], Any]

# An instant with a million holes, or with 300,000 quarantined files, is smaller.
INSTANT_BYTES_MAX = 64 << 20
SMALL_BYTES_MAX = 64 << 10  # of the hint
# Lists, their items and the fields of records: each takes up to 64 bytes of memory once parsed.
_VALUES_MAX = 4_000_000
_DIGITS_MAX = 20
_DEPTH_MAX = 8  # of values whose parts are not named here, such as the summary of an action

INT64_MAX = (1 << 63) - 1
VERSION_MAX = 10**15 - 1
FILE_ID_MAX = (1 << 64) - 1
PARTITIONS_MAX = SEQUENCES_MAX = 1 << 32
IDS_MAX = 1 << 31  # of columns, fields and indexes
TIME_US_MAX = 253_402_300_799_999_999  # the last microsecond of the year 9999
_HEX = re.compile("(?:[0-9a-f]{2})*")


class FieldError(ValueError):
    """A value that its field does not allow. The message begins with the place of the value."""


def parse_json(data: bytes, max_bytes: int) -> Any:
    """Return the value of a UTF-8 JSON text. Raise FieldError if it is not JSON, names a field twice, contains NaN or
    an infinity, or is larger or deeper than anything that Skipstone writes."""
    check_size(data, max_bytes)
    try:
        return json.loads(
            data.decode(), object_pairs_hook=_unique, parse_constant=_no_number, parse_int=_int, parse_float=_float
        )
    except RecursionError:
        raise FieldError("nested too deep") from None
    except FieldError:
        raise
    except ValueError as error:
        raise FieldError(f"no JSON ({error})") from None


def check_size(data: bytes, max_bytes: int) -> None:
    """Raise FieldError if a JSON text would take too much memory."""
    if len(data) > max_bytes:
        raise FieldError(f"{len(data):,} bytes, more than {max_bytes:,}")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > _VALUES_MAX:
        raise FieldError(f"more than {_VALUES_MAX:,} values")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise FieldError("a field is named twice")
    return values


def _no_number(name: str) -> None:
    raise FieldError(f"{name} is no number")


def _int(digits: str) -> int:
    if len(digits) > _DIGITS_MAX:
        raise FieldError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise FieldError(f"{digits[:30]} is beyond the range of a float")
    return value


# -- single values ----------------------------------------------------------------------------------------------------


def integer(low: int, high: int) -> Field:
    """Return the field of an integer from `low` to `high`, inclusive. `true` and `false` are not integers."""

    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise FieldError(f"{_shown(value)} is no integer from {low} to {high}")
        return value

    return check


def text(value: Any) -> str:
    """Check a string: UTF-8 must be able to encode it."""
    if type(value) is not str or not (value.isascii() or is_utf8(value)):
        raise FieldError(f"{_shown(value)} is no text")
    return value


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise FieldError(f"{_shown(value)} is neither true nor false")
    return value


def probability(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < 1:
        raise FieldError(f"{_shown(value)} is no number between 0 and 1")
    return value


def hex_bytes(value: Any) -> str:
    if type(value) is not str or not _HEX.fullmatch(value):
        raise FieldError(f"{_shown(value)} is no hexadecimal text")
    return value


def index_path(value: Any) -> str:
    """Check the path of a file below the index root."""
    if not text(value) or leads_out(value):
        raise FieldError(f"{_shown(value)} is no path below the index root")
    return value


def one_of(*values: str) -> Field:
    def check(value: Any) -> str:
        if type(value) is not str or value not in values:
            raise FieldError(f"{_shown(value)} is none of {', '.join(values)}")
        return value

    return check


def plain(value: Any, depth: int = _DEPTH_MAX) -> Any:
    """Check any value that is only shown: its depth and its integers are bounded."""
    if type(value) is dict and depth:
        return {text(name): plain(each, depth - 1) for name, each in value.items()}
    if type(value) is list and depth:
        return [plain(each, depth - 1) for each in value]
    if type(value) is str:
        return text(value)
    if value is None or type(value) in (bool, float) or (type(value) is int and abs(value) <= INT64_MAX):
        return value
    raise FieldError(f"{_shown(value)} is too deep, or no plain value")


# -- values of several parts ------------------------------------------------------------------------------------------


def nullable(field: Field) -> Field:
    return lambda value: None if value is None else field(value)


def array(field: Field) -> Field:
    """Return the field of a list, which becomes a tuple."""

    def check(value: Any) -> tuple:
        if type(value) is not list:
            raise FieldError(f"{_shown(value)} is no list")
        return tuple([field(each) for each in value])

    return check


def unique_texts(value: Any) -> tuple[str, ...]:
    """Check a list of texts without duplicates."""
    texts = array(text)(value)
    if len(set(texts)) != len(texts):
        raise FieldError("a text is there twice")
    return texts


def pair(first: Field, second: Field) -> Field:
    def check(value: Any) -> tuple:
        if type(value) is not list or len(value) != 2:
            raise FieldError(f"{_shown(value)} is no pair")
        return first(value[0]), second(value[1])

    return check


def ranges(low: int, high: int) -> Field:
    """Return the field of inclusive ranges of integers from `low` to `high`, ascending and disjoint."""

    def check(value: Any) -> tuple[tuple[int, int], ...]:
        if type(value) is not list:
            raise FieldError(f"{_shown(value)} is no list of ranges")
        before, ranges = low - 1, []
        for each in value:
            if type(each) is not list or len(each) != 2:
                raise FieldError(f"{_shown(each)} is no range")
            first, last = each
            if type(first) is not int or type(last) is not int or not before < first <= last <= high:
                raise FieldError(f"{_shown(each)} is no range from {before + 1} to {high}")
            ranges.append((first, last))
            before = last
        return tuple(ranges)

    return check


def mapping(name: Field, field: Field) -> Field:
    """Return the field of an object with any names."""

    def check(value: Any) -> dict:
        if type(value) is not dict:
            raise FieldError(f"{_shown(value)} is no object")
        return {name(key): field(each) for key, each in value.items()}

    return check


def record(fields: dict[str, Field], make: Callable[..., Any] = dict, optional: tuple[str, ...] = ()) -> Field:
    """Return the field of an object with these fields; `optional` ones may be absent. Its value is the result of
    `make`. Other fields are ignored, because a later Skipstone may have written them (LAYOUT.md, "Format 1")."""

    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise FieldError(f"{_shown(value)} is no object")
        checked = {}
        for name, field in fields.items():
            if name not in value:
                if name in optional:
                    continue
                raise FieldError(f"field {name!r} is missing")
            try:
                checked[name] = field(value[name])
            except FieldError as error:
                raise FieldError(f"{name}: {error}") from None
        return make(**checked)

    return check


def _shown(value: Any) -> str:
    """Return a value as errors show it: its beginning, or its type and length if it may be large."""
    if isinstance(value, (list, dict)):
        return f"a {'list' if isinstance(value, list) else 'JSON object'} of {len(value):,}"
    return ascii(value) if not isinstance(value, str) else ascii(value[:40])
