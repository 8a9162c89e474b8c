"""Finding a few strings among those of a template, without writing the others: by the digits that they hold.

Where a template has a part of hexadecimal digits, or of uuids, that begins at one place in all strings, the first bytes
of what a string has there are compared with those of the rows as they lie; the few rows that have them are written, and
compared whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays import binary_array, to_numpy
from .template_strings import TemplateStrings
from .templates import DIGITS, HEX, PLAIN, Part

# More wanted strings than this are found sooner by writing all.
WANTED_MAX = 64
# The first bytes of a random uuid are as in any other: 12 digits and a dash.
_HEAD_BYTES, _HEAD_CHARACTERS = 6, 13


def find(column: TemplateStrings, wanted: Sequence[bytes], start: int, stop: int) -> np.ndarray | None:
    """int64 [k], ascending: which rows from `start` to `stop` hold one of `wanted`; null rows may be among them. None
    where the template is no help."""
    at = next((i for i, part in enumerate(column.parts) if part.kind in DIGITS), None)
    if at is None or len(wanted) > WANTED_MAX or column.parts[at].is_less:
        return None
    if any(part.kind == PLAIN for part in column.parts[:at]):
        return None
    data = column.parts[at].data
    assert data is not None
    first = sum(_width(part) for part in column.parts[:at])
    size = min(_HEAD_BYTES, data.shape[1])
    rows: list[np.ndarray] = []
    for value in wanted:
        head = _digits(value[first : first + _HEAD_CHARACTERS], size)
        if head is not None:
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


def _width(part: Part) -> int:
    return 2 * part.size if part.kind == HEX else part.size


def _digits(text: bytes, size: int) -> np.ndarray | None:
    """uint8 [size]: the first bytes of hexadecimal digits; None where the text is none."""
    try:
        found = bytes.fromhex(text.replace(b"-", b"")[: 2 * size].decode())
    except ValueError:
        return None
    return np.frombuffer(found, dtype=np.uint8) if len(found) == size else None
