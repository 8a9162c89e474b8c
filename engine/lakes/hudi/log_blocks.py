"""The kinds of the blocks in a Hudi log file, and the commits that wrote them. Rows are not read.

    "#HUDI#", size u64, version u32, kind u32, header, content size u64, content, footer, size u64 with the magic's

Numbers are big-endian. A header is a count, then (key u32, length u32, UTF-8) per entry. (Hudi, `HoodieLogFormatWriter`
and `HoodieLogFileReader`, format version 1.)
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

from ...storage import FileMissingError, Storage

COMMAND, DELETE, CORRUPT, DATA = "command", "delete", "corrupt", "data"
_KINDS = {0: COMMAND, 1: DELETE, 2: CORRUPT, 3: DATA, 4: DATA, 5: DATA}  # 6 is change data, which no reader merges
_MAGIC = b"#HUDI#"
_FRONT = len(_MAGIC) + 8
_INSTANT_TIME, _TARGET_TIME, _COMMAND, _IS_PARTIAL = 0, 1, 3, 7
_ROLLBACK = "0"
_READ_BYTES = 1 << 16
_HEADER_BYTES_MAX = 1 << 26


@dataclass(frozen=True)
class LogBlock:
    """One block.

    kind        "data", "delete", "command" or "corrupt"
    instant     the commit that wrote it
    target      for a command: the commit that it rolls back
    """

    kind: str
    instant: str
    target: str | None = None
    is_partial: bool = False


def log_blocks(storage: Storage, path: str, size_bytes: int) -> list[LogBlock] | None:
    """Return the blocks of a log file; None if a part is unknown or the file is missing. Raises StorageError."""
    blocks, offset = [], 0
    while offset < size_bytes:
        try:
            block, length = _block_at(storage, path, offset, size_bytes)
        except (ValueError, struct.error, FileMissingError):
            return None
        blocks.append(block)
        offset += length
    return blocks


def _block_at(storage: Storage, path: str, offset: int, size_bytes: int) -> tuple[LogBlock, int]:
    """Return the block at an offset and its whole length. Raises ValueError if there is no block."""
    wanted = _READ_BYTES
    while True:
        (data,) = storage.read_ranges(path, [(offset, min(wanted, size_bytes - offset))])
        try:
            fields = io.BytesIO(data)
            magic, size, version, number = _unpacked(">6sQII", fields)
            length = _FRONT + size
            if magic != _MAGIC or version != 1 or offset + length > size_bytes:
                raise ValueError("no block starts here, or it has an unknown version or ends beyond its file")
            header = _header(fields)
            break
        except struct.error:
            if len(data) < min(wanted, size_bytes - offset) or wanted >= min(_HEADER_BYTES_MAX, size_bytes - offset):
                raise ValueError("the header ends beyond its file") from None
            wanted *= 8
    (end,) = (
        storage.read_ranges(path, [(offset + length - 8, 8)]) if length > len(data) else (data[length - 8 : length],)
    )
    if struct.unpack(">Q", end)[0] != length - 8:
        raise ValueError("the block's two sizes differ")
    kind, instant = _KINDS.get(number), header.get(_INSTANT_TIME)
    if kind is None or instant is None or (kind == COMMAND and header.get(_COMMAND) != _ROLLBACK):
        raise ValueError("a block of an unknown kind")
    return LogBlock(kind, instant, header.get(_TARGET_TIME), header.get(_IS_PARTIAL, "").lower() == "true"), length


def _header(fields: io.BytesIO) -> dict[int, str]:
    """Read a header. Raises struct.error if it ends beyond the bytes."""
    header = {}
    (count,) = _unpacked(">I", fields)
    for _ in range(count):
        key, length = _unpacked(">II", fields)
        text = fields.read(length)
        if len(text) < length:
            raise struct.error("the header ends later")
        header[key] = text.decode("utf-8", "replace")
    return header


def _unpacked(form: str, fields: io.BytesIO) -> tuple:
    return struct.unpack(form, fields.read(struct.calcsize(form)))
