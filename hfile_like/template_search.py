"""Finding a few strings among those of a template, without writing the others: by the digits that they hold.

A string is taken apart as the template has it. Where one of the parts holds hexadecimal digits, or uuids, their first
bytes are compared as they lie; the few rows that have them are written, and compared whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import binary_array, to_numpy
from .templates import DIGITS, DIGITS_MAX, HEX, LITERAL, PADDED, PLAIN, Part, TemplateStrings

# More wanted strings than this are found sooner by writing all.
WANTED_MAX = 64
# The first bytes of a random uuid are as in any other.
_HEAD_BYTES = 6


def find(column: TemplateStrings, wanted: Sequence[bytes], start: int, stop: int) -> np.ndarray | None:
    """int64 [k], ascending: which rows from `start` to `stop` hold one of `wanted`; null rows may be among them. None
    where the template is no help."""
    at = next((i for i, part in enumerate(column.parts) if part.kind in DIGITS), None)
    if at is None or len(wanted) > WANTED_MAX or not _is_plain(column.parts):
        return None
    data = column.parts[at].data
    assert data is not None
    size = min(_HEAD_BYTES, data.shape[1])
    pattern = re.compile(b"".join(_pattern(part, i == at) for i, part in enumerate(column.parts)), re.DOTALL)
    rows: list[np.ndarray] = []
    for value in wanted:
        found = pattern.fullmatch(value)
        if found is not None:
            head = np.frombuffer(bytes.fromhex(found[1].replace(b"-", b"").decode()), dtype=np.uint8)[:size]
            near = start + np.flatnonzero(data[start:stop, 0] == head[0])
            rows.append(near[(data[near, :size] == head).all(axis=1)])
    some = np.unique(np.concatenate(rows)) if rows else np.empty(0, dtype=np.int64)
    if not len(some):
        return some
    values = column.take(some, None)
    known = set(wanted)
    same = [_bytes_of(value) in known for value in values]
    return some[np.array(same, dtype=bool)]


def found_in(column: pa.Array, wanted: Sequence[bytes]) -> np.ndarray:
    """int64 [k]: where an array of strings or bytes holds one of `wanted`."""
    return np.flatnonzero(to_numpy(pc.is_in(column, value_set=binary_array(wanted, column.type))))


def _bytes_of(value: pa.Scalar) -> bytes:
    return value.as_buffer().to_pybytes()


def _is_plain(parts: Sequence[Part]) -> bool:
    """Whether a string can be taken apart in one way only: what follows a number of any length is no digit."""
    return all(
        first.kind != PLAIN or (second.kind == LITERAL and not second.literal[:1].isdigit() and second.literal)
        for first, second in pairwise(parts)
    )


def _pattern(part: Part, is_wanted: bool) -> bytes:
    if part.kind == LITERAL:
        return re.escape(part.literal)
    if part.kind == PADDED:
        return b"[0-9]{%d}" % part.size
    if part.kind == PLAIN:
        return b"[0-9]{1,%d}" % DIGITS_MAX
    size = 2 * part.size
    digits = b"[0-9a-f]{%d}" % size if part.kind == HEX else b"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    return b"(%s)" % digits if is_wanted else digits
