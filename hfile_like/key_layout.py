"""Keys of named fields of unsigned numbers, concatenated in big-endian form, so that keys order as the fields do.

layout = KeyLayout([("kind", 1), ("column", 4), ("partition", 4)])
layout.encode(kind=1, column=7, partition=parts)      # an array, and numbers that all rows share
layout.prefix(kind=1, column=7)                        # the prefix of a scan
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..base.arrays import big_endian, binary_rows, byte_table, combine, from_big_endian
from ..errors import CorruptionError, InvalidArgumentError

_FIELD_BYTES_MAX = 8


class KeyLayout:
    """The fields of a key: (name, width in bytes, 1 to 8) in the order in which they sort.

    width_bytes    of a whole key
    names          of the fields
    """

    def __init__(self, fields: Sequence[tuple[str, int]]):
        self.names = tuple(name for name, _ in fields)
        self.widths = tuple(width for _, width in fields)
        if not fields or len(set(self.names)) != len(self.names):
            raise InvalidArgumentError(f"a key needs fields of different names, not {list(self.names)}")
        for name, width in fields:
            if not 1 <= width <= _FIELD_BYTES_MAX:
                raise InvalidArgumentError(f"key field {name!r} is {width} bytes wide: give 1 to {_FIELD_BYTES_MAX}")
        self.width_bytes = sum(self.widths)

    def encode(self, **columns: np.ndarray | int) -> pa.BinaryArray:
        """Return binary keys [n] from one array [n] or one integer per field. If all are integers, it is one key.
        Raise InvalidArgumentError for a field that is missing, unknown, of another length, or out of range."""
        if set(columns) != set(self.names):
            raise InvalidArgumentError(f"this key takes the fields {list(self.names)}, not {sorted(columns)}")
        arrays = {name: np.asarray(values) for name, values in columns.items()}
        lengths = {len(array) for array in arrays.values() if array.ndim}
        if max([array.ndim for array in arrays.values()]) > 1 or len(lengths) > 1:
            raise InvalidArgumentError("the columns of a key must be of one dimension and one length")
        count = lengths.pop() if lengths else 1
        if count * self.width_bytes > np.iinfo(np.int32).max:
            raise InvalidArgumentError(f"{count:,} keys of {self.width_bytes} bytes: encode at most 2 GiB at a time")
        out = np.empty((count, self.width_bytes), dtype=np.uint8)
        offset = 0
        for name, width in zip(self.names, self.widths, strict=True):
            numbers = _unsigned(name, arrays[name], width).reshape(-1)
            out[:, offset : offset + width] = big_endian(numbers, width)
            offset += width
        return binary_rows(out)

    def decode(self, keys: pa.Array | pa.ChunkedArray) -> dict[str, np.ndarray]:
        """Return the fields of binary keys: arrays [n] of the least of uint8, uint16, uint32 and uint64 of that width.
        Raise CorruptionError if a key does not have the length of this layout."""
        if isinstance(keys, pa.ChunkedArray):
            keys = combine(keys)
        nothing = np.empty((0, self.width_bytes), dtype=np.uint8)
        table = byte_table(keys.cast(pa.binary())) if len(keys) else nothing
        if table is None or keys.null_count or table.shape[1] != self.width_bytes:
            raise CorruptionError(f"a key is not of the {self.width_bytes} bytes of {list(self.names)}", check="key")
        fields, offset = {}, 0
        for name, width in zip(self.names, self.widths, strict=True):
            fields[name] = from_big_endian(table[:, offset : offset + width])
            offset += width
        return fields

    def prefix(self, **leading: int) -> bytes:
        """Return the prefix of keys with these first fields. Raise InvalidArgumentError for other fields."""
        if set(leading) != set(self.names[: len(leading)]):
            raise InvalidArgumentError(f"a prefix takes the first of {list(self.names)}, not {sorted(leading)}")
        pairs = zip(self.names, self.widths, strict=True)
        return b"".join(_field(name, leading[name], width) for name, width in pairs if name in leading)


def _field(name: str, value: int, width: int) -> bytes:
    try:
        return int(value).to_bytes(width, "big")
    except OverflowError:
        raise InvalidArgumentError(f"key field {name!r} has 0 to {(1 << 8 * width) - 1:,}, not {value}") from None


def _unsigned(name: str, values: np.ndarray, width: int) -> np.ndarray:
    if values.size and not (values.dtype.kind == "u" and values.dtype.itemsize <= width):
        if values.dtype.kind not in "iu":
            raise InvalidArgumentError(f"key field {name!r} takes integers, not {values.dtype}")
        low, high = int(np.minimum.reduce(values, axis=None)), int(np.maximum.reduce(values, axis=None))
        if low < 0 or high >= 1 << 8 * width:
            bad = low if low < 0 else high
            raise InvalidArgumentError(f"key field {name!r} has 0 to {(1 << 8 * width) - 1:,}, not {bad}")
    return values.astype(np.uint64)
