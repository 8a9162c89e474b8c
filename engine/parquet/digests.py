"""Digests of data files: by them a copy is known to hold what was indexed, whatever its time says.

    of a file that we write    of all its bytes, as they pass. What is kept of its values says more than its footer does
    of a file that is indexed  of its footer and of the column chunks that the index was made from, which are read
                               anyway: chunk by chunk, so that several threads, and several indexes, can share the work

Bytes, not values: of equal bytes every reader makes the same entries, and a check needs to decode nothing. BLAKE2b of 16
bytes: nobody finds two files of one digest, and it needs no instructions that only some processors have.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from .footers import chunk_ranges, ranged_file

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from ..storage import Entry, Storage

DIGEST_BYTES = 16
_PIECE_BYTES = 4 << 20  # of a file, read and hashed at once


def _hash(data: bytes = b"") -> Any:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES)


class DigestingSink(io.RawIOBase):
    """A file being written, and the digest of what has been written. It leaves the file open."""

    def __init__(self, sink: BinaryIO):
        super().__init__()
        self._sink, self._hash = sink, _hash()

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
    file, hashed = ranged_file(storage, entry), _hash()
    for start in range(0, entry.size_bytes, _PIECE_BYTES):
        hashed.update(file.read_at(start, min(_PIECE_BYTES, entry.size_bytes - start)))
    return hashed.digest()


def chunk_digests(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> bytes:
    """The digests of the column chunks that a row group holds of some columns, one after the other in the file's
    order. The file is one that `open_indexed` opened `with_bytes`."""
    digests = []
    for start, length in chunk_ranges(file, group, columns):
        hashed = _hash()
        for offset in range(start, start + length, _PIECE_BYTES):
            hashed.update(file.remote.read_at(offset, min(_PIECE_BYTES, start + length - offset)))
        digests.append(hashed.digest())
    return b"".join(digests)


def footer_digest(file: pq.ParquetFile) -> bytes:
    """The digest of the footer, of a file that `open_indexed` opened `with_bytes`."""
    return _hash(file.footer).digest()


def indexed_digest(footer: bytes, chunks: Iterable[bytes]) -> bytes:
    """The digest of what an index was made from: `footer_digest`, and the `chunk_digests` of each row group."""
    hashed = _hash(footer)
    for each in chunks:
        hashed.update(each)
    return hashed.digest()
