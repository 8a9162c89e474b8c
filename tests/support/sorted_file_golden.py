"""The golden files of the sorted-block format: which there are, and what one holds, as JSON."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pyarrow as pa
from skipstone.hfile_like import SortedFileReader
from sorted_file_samples import COMPRESSIONS, file_of, names

__all__ = ["FILES", "contents", "file_of", "path_of", "told"]

FOLDER = Path(__file__).parents[1] / "hfile_like" / "golden"
# Large, and of encodings that others have.
_LEFT_OUT = ("many_blocks", "wide_text")
_COMPRESSED = ("keys_bundles", "values_names", "sections")
FILES = [
    name
    for name in names()
    if name.split("/")[0] not in _LEFT_OUT and (name.endswith("none") or name.split("/")[0] in _COMPRESSED)
]
assert set(COMPRESSIONS) == {"none", "zstd"}


def path_of(name: str) -> Path:
    """Where a golden file lies."""
    return FOLDER / f"{name.replace('/', '-')}.skb"


def told(held: dict) -> str:
    """What a file holds, as the text beside it."""
    return json.dumps(held, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def contents(data: bytes) -> dict:
    """Everything that a file holds."""
    reader = SortedFileReader(data)
    table = reader.scan_table(include_deleted=True)
    return {
        "schema": {field.name: str(field.type) for field in reader.schema},
        "metadata": {k.decode(): v.decode() for k, v in (reader.schema.metadata or {}).items()},
        "columns": {name: _values(table[name]) for name in table.schema.names},
        "blocks": [
            [b.offset, b.length, b.entries, b.deleted, b.plain_bytes, b.first_key.hex(), b.last_key.hex()]
            for b in reader.blocks()
        ],
        "groups": {name: list(astuple(group))[1:] for name, group in reader.groups().items()},
        "metas": {name: reader.meta(name).hex() for name in reader.metas()},
        "strided": {
            name: [row.tobytes().hex() for row in reader.read_rows([(name, range(section.rows))])[0]]
            for name, section in reader.row_tables().items()
        },
        "summaries": {
            name: {
                "lower": _values(summary.lower), "upper": _values(summary.upper), "nulls": summary.null_count.tolist()
            }
            for name, summary in reader.zone_maps().items()
            if summary is not None
        },
    }  # fmt: skip


def _values(values: pa.ChunkedArray | pa.Array | np.ndarray) -> list:
    """Values as JSON can hold them: bytes in hexadecimal, floats by all of their bits, times as integers."""
    if isinstance(values, np.ndarray):
        return values.tolist()
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int64() if values.type.bit_width == 64 else pa.int32())
    return [_value(value) for value in values.to_pylist()]


def _value(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float):
        return value.hex()
    return value if isinstance(value, bool | int | str) or value is None else str(value)
