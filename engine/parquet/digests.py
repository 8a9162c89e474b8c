"""Digests of data files. A file with the digest that was recorded contains what was indexed, whatever its time is.

    a file that we write     the digest of all its bytes, computed as they are written
    a file that is indexed   the digest of its footer and of the column chunks that the index was made from, which are
                             read anyway: chunk by chunk, so that several threads, and several indexes, share the work

Digests are of bytes, not of values: every reader makes the same entries from equal bytes, and a check decodes nothing.
They are the first 16 bytes of SHA-256: two files of one digest cannot be found, and processors have instructions for
it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from .footers import chunk_ranges, range_file

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from ..storage import Entry, RangeFile, Storage

DIGEST_BYTES = 16
_PIECE_BYTES = 512 << 10  # of a file, read and hashed at once: it stays in the processor's cache
_FAR_PIECE_BYTES = 8 << 20  # where each is a request


class _Hash:
    def __init__(self, data: bytes = b""):
        import hashlib  # loads OpenSSL, which a plan does not need

        self._hash = hashlib.sha256(data, usedforsecurity=False)
        self.update = self._hash.update

    def digest(self) -> bytes:
        return self._hash.digest()[:DIGEST_BYTES]


class DigestingSink(io.RawIOBase):
    """A file being written, and the digest of what has been written. It leaves the file open."""

    def __init__(self, sink: BinaryIO):
        super().__init__()
        self._sink, self._hash = sink, _Hash()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._hash.update(data)
        return self._sink.write(data)

    def flush(self) -> None:
        if not self.closed:
            self._sink.flush()

    def tell(self) -> int:
        return self._sink.tell()

    def digest(self) -> bytes:
        return self._hash.digest()


def file_digest(storage: Storage, entry: Entry) -> bytes:
    """The digest of a whole file."""
    piece_bytes = _FAR_PIECE_BYTES if storage.gap_bytes else _PIECE_BYTES
    return _range_digest(range_file(storage, entry), 0, entry.size_bytes, piece_bytes)


def chunk_digests(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> bytes:
    """The digests of a row group's chunks of some columns, one after the other, column by column, of a
    file that `open_indexed` opened. Chunks that `footers.prefetch` fetched are not read again."""
    piece_bytes = _PIECE_BYTES if file.remote is None else _FAR_PIECE_BYTES
    chunks = (chunk for column in columns for chunk in chunk_ranges(file, group, [column]))
    return b"".join(_range_digest(file.ranges, *chunk, piece_bytes) for chunk in chunks)


def _range_digest(reader: RangeFile, start: int, length: int, piece_bytes: int) -> bytes:
    hashed = _Hash()
    for offset in range(start, min(start + length, reader.size_bytes), piece_bytes):
        hashed.update(reader.read_at(offset, min(piece_bytes, start + length - offset)))
    return hashed.digest()


def footer_digest(file: pq.ParquetFile) -> bytes:
    """The digest of the footer, of a file that `open_indexed` opened."""
    return _Hash(file.footer).digest()


def indexed_digest(footer: bytes, chunks: Iterable[bytes]) -> bytes:
    """The digest of what an index was made from: `footer_digest`, and the `chunk_digests` of each row group."""
    hashed = _Hash(footer)
    for each in chunks:
        hashed.update(each)
    return hashed.digest()
