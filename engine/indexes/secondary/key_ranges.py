"""What is asked of a secondary index: ranges of its keys, from what is asked of each of its columns."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....arrays import from_numpy
from ....errors import InvalidArgumentError
from ....hfile_like import prefix_successor
from ....hfile_like.ordered import VALUE_MARK, OrderedCode, beginning


@dataclass(frozen=True)
class Values:
    """The column holds one of these, which are of its type's class; a null among them stands for null."""

    values: pa.Array | pa.ChunkedArray


@dataclass(frozen=True)
class Interval:
    """The column is not null, and lies between two values of its type's class; None where that end is open to all, NaN
    included, which is the greatest. `lower_open`, `upper_open`: the end itself is left out."""

    lower: pa.Scalar | None = None
    upper: pa.Scalar | None = None
    lower_open: bool = False
    upper_open: bool = False


@dataclass(frozen=True)
class Prefix:
    """The column, of strings or binary values, begins with these bytes."""

    text: bytes


Part = Values | Interval | Prefix


@dataclass(frozen=True)
class KeyRanges:
    """Ranges of keys, ascending and disjoint: from each of `starts` on, before the stop at its place."""

    starts: list[bytes]
    stops: list[bytes]

    def __len__(self) -> int:
        return len(self.starts)

    def within(self, first: bytes, last: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Those that may hold a key from `first` to `last`, both inclusive."""
        low, high = bisect_right(self.stops, first), bisect_right(self.starts, last)
        return zip(self.starts[low:high], self.stops[low:high], strict=True)


def key_ranges(code: OrderedCode, parts: Sequence[Part]) -> KeyRanges:
    """The keys whose first values are as each of `parts` says of its column; all but the last are Values, of which
    every combination is asked for. Raises InvalidArgumentError for other parts, or for values of another class."""
    if not 1 <= len(parts) <= len(code.kinds) or not all(isinstance(part, Values) for part in parts[:-1]):
        raise InvalidArgumentError("only the last column that is asked about may be asked for other than values")
    equal = [part for part in parts if isinstance(part, Values)]
    leading = _combinations(code, equal) if equal else [b""]
    ends = _ends(code.kinds[len(parts) - 1], parts[-1])
    if ends is None:
        return KeyRanges([], [])
    (lower, is_above), (upper, is_through) = ends
    starts = [_after(key + lower) if is_above else key + lower for key in leading]
    stops = [_after(key + upper) if is_through else key + upper for key in leading]
    kept = [i for i, (start, stop) in enumerate(zip(starts, stops, strict=True)) if start < stop]
    return KeyRanges([starts[i] for i in kept], [stops[i] for i in kept])


def _combinations(code: OrderedCode, parts: Sequence[Values]) -> list[bytes]:
    """The keys of every combination, ascending, each once."""
    sizes = [len(part.values) for part in parts]
    total = repeats = math.prod(sizes)
    if not total:
        return []
    columns = []
    for part, size in zip(parts, sizes, strict=True):
        repeats //= size
        at = np.arange(total) // repeats % size
        columns.append(part.values.take(from_numpy(at)))
    return sorted(set(code.encode(columns).to_pylist()))


def _ends(kind: pa.DataType, part: Part) -> tuple[tuple[bytes, bool], tuple[bytes, bool]] | None:
    """((what keys begin with at the lower end, whether those are left out), (the same at the upper end, whether those
    are in)); None where nothing lies between."""
    if isinstance(part, Values):
        return (b"", False), (b"", True)
    if isinstance(part, Prefix):
        is_fixed = pa.types.is_fixed_size_binary(kind)
        if is_fixed and len(part.text) > kind.byte_width:
            return None  # or what follows the value would be compared
        text = VALUE_MARK + part.text if is_fixed else beginning(part.text)
        return (text, False), (text, True)
    ends = []
    for bound in (part.lower, part.upper):
        if bound is not None and not bound.is_valid:
            return None
        ends.append(VALUE_MARK if bound is None else OrderedCode([kind]).encode([pa.repeat(bound, 1)])[0].as_py())
    lower_open = part.lower is not None and part.lower_open
    upper_open = part.upper is not None and part.upper_open
    return (ends[0], lower_open), (ends[1], not upper_open)


def _after(prefix: bytes) -> bytes:
    """The least key above every key that begins with `prefix`, which is a key's beginning and so not all 255."""
    after = prefix_successor(prefix)
    assert after is not None
    return after
