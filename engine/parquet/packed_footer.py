"""A footer in the form in which an index stores it: only what a reader needs to read the file without its end.

It is a Parquet footer with the schema, the row groups and the positions of their column chunks. It has no statistics,
page indexes, filters or other fields. Compressed, it takes about 10 bytes per column chunk.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

import pyarrow as pa

from ...errors import CorruptionError
from .footer_bytes import bare_chunk_at, footer_bytes, metadata_of, rewritten
from .thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    ItemAt,
    encode_binary,
    encode_int,
    encode_list,
    encode_struct,
    struct_at,
    value_at,
)

PACKED_BYTES_MAX = 32 << 10  # a larger one costs an index more than a read of the file's end
_FOOTER_BYTES_MAX = 64 << 20
_ARROW_SCHEMA = b"ARROW:schema"  # Arrow's types of the columns


def packed_footer(metadata: Any) -> bytes | None:
    """Return the footer of pyarrow's FileMetaData, which `footer_bytes` has accepted; None if it has unknown parts, or
    is too large to store."""
    data = rewritten(metadata)
    try:
        fields, _ = struct_at(data, 0, _LISTS)
        groups = [
            encode_struct(
                (1, LIST, encode_list(STRUCT, chunks)), (2, I64, encode_int(size)), (3, I64, encode_int(rows))
            )
            for chunks, size, rows in ((group[1], group[2], group[3]) for group in fields[4])
        ]
        parts = [
            (1, I32, encode_int(fields[1])),
            (2, LIST, encode_list(STRUCT, fields[2])),
            (3, I64, encode_int(fields[3])),
            (4, LIST, encode_list(STRUCT, groups)),
        ]
    except (ValueError, IndexError, KeyError):
        return None
    stored = (metadata.metadata or {}).get(_ARROW_SCHEMA)
    if stored is not None:
        pair = encode_struct((1, BINARY, encode_binary(_ARROW_SCHEMA)), (2, BINARY, encode_binary(stored)))
        parts.append((5, LIST, encode_list(STRUCT, [pair])))
    if 6 in fields:
        parts.append((6, BINARY, encode_binary(fields[6])))
    packed = zlib.compress(encode_struct(*parts), 6)
    return packed if len(packed) <= PACKED_BYTES_MAX else None


def unpacked_footer(packed: bytes, path: str, size_bytes: int) -> Any:
    """Return the FileMetaData of a packed footer. `path`, `size_bytes`: of its file. Raise CorruptionError if no file
    of that size can have it."""
    message = "its footer, as the index has it, cannot be read ({}); restore the index"
    try:
        inflating = zlib.decompressobj()
        footer = inflating.decompress(packed, _FOOTER_BYTES_MAX)
        if not inflating.eof:
            raise CorruptionError(message.format("it is cut short, or too large"), path=path, check="parquet")
        metadata = metadata_of(footer)
    except (pa.ArrowException, OSError, ValueError, zlib.error) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CorruptionError(message.format(reason), path=path, check="parquet") from error
    footer_bytes(metadata, path, size_bytes)
    return metadata


def _element_at(data: bytes, offset: int) -> tuple[bytes, int]:
    end = value_at(data, offset, STRUCT)[1]
    return data[offset:end], end


_LISTS: dict[int, ItemAt] = {2: _element_at, 4: partial(struct_at, lists={1: bare_chunk_at})}
