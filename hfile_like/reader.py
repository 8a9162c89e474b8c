"""Reading a sorted-block file: point look-ups, batches of them, scans.

A reader holds the footer and the tail of its file, and some blocks that look-ups asked for; threads may share it. What
is decoded is what was asked: a get searches the encoded keys of one block and decodes values only where the key is
there; a scan decodes the columns that it returns. This file is the public face; `open_file` reads, and `lookups`,
`scanning`, `numbered` and `verify` answer.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..errors import InvalidArgumentError, is_integer
from .block import Block
from .byte_io import COALESCE_GAP_BYTES, Source
from .entries import column_positions, scan_schema
from .file import TAIL_BYTES, GroupHandle, StridedSection
from .index_rows import BlockInfo, Summary
from .lookups import look_up, look_up_one
from .numbered import NumberedKeys
from .open_file import READ_AHEAD_BYTES, OpenFile, key_bounds, named
from .scanning import scan

if TYPE_CHECKING:
    from .inspection import Finding

CACHE_BYTES = 32 << 20


class SortedFileReader:
    """Reads a sorted-block file.

    source       a path, bytes, or an object with `size` and `read_ranges` (see `source.Source`)
    tail_bytes   how much the one read that opens a file takes
    cache_bytes  how much of the blocks that `get` and `get_many` read is held for the next call: 0 for nothing

    Tombstones are not found and not returned, except where `include_deleted` asks for them. Raises NotATableError
    where there is no file, CorruptionError, FormatVersionError, StorageError.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | bytearray | memoryview | pa.Buffer | Source,
        *,
        tail_bytes: int = TAIL_BYTES,
        cache_bytes: int = CACHE_BYTES,
    ):
        for what, size in (("tail_bytes", tail_bytes), ("cache_bytes", cache_bytes)):
            if not is_integer(size, 0):
                raise InvalidArgumentError(f"{what} {size!r}: give a number of bytes")
        self.file = OpenFile(source, tail_bytes, cache_bytes)
        self.name, self.schema = self.file.name, self.file.schema

    def reading_from(self, source: Source) -> SortedFileReader:
        """A reader of the same file by way of another source, which stays the caller's: the footer is shared."""
        other = copy.copy(self)
        other.file = self.file.reading_from(source)
        return other

    # -- look-ups -----------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> dict[str, object] | None:
        """The values of a key as Python objects, or None. A value that Python's own type cannot hold (a timestamp of
        the year 12,000, or of a zone that Python does not know) comes as a pyarrow Scalar."""
        self.file.check_open()
        if not isinstance(key, bytes):
            raise InvalidArgumentError(f"a key is bytes, not {type(key).__name__}")
        return look_up_one(self.file, key)

    def get_many(
        self,
        keys: Sequence[bytes] | pa.Array | pa.ChunkedArray,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
    ) -> pa.Table:
        """One row for each key, in the order given (repeats allowed): `key`, the value columns (null where the key
        is not there) and `found`. With `include_deleted`, tombstones are found too, and `deleted` marks them."""
        self.file.check_open()
        return look_up(self.file, keys, self._positions(columns), include_deleted)

    # -- scans --------------------------------------------------------------------------------------------------------

    def scan(
        self,
        prefix: bytes | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        group: str | None = None,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Batches of `key` and the value columns, in key order: keys that begin with `prefix`, from `start`, before
        `stop`, of `group`: what is given all holds. With `include_deleted`, tombstones too and a column `deleted`."""
        self.file.check_open()
        positions = self._positions(columns)
        start, stop = key_bounds(prefix, start, stop)
        blocks = self.file.block_range(start, stop, group)
        return scan(self.file, blocks, start, stop, positions, include_deleted)

    def scan_table(
        self,
        prefix: bytes | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        group: str | None = None,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
    ) -> pa.Table:
        """What `scan` gives, as one Table."""
        batches = self.scan(
            prefix, start=start, stop=stop, group=group, columns=columns, include_deleted=include_deleted
        )
        return pa.Table.from_batches(batches, scan_schema(self.schema, self._positions(columns), include_deleted))

    def keys(self, prefix: bytes | None = None) -> pa.ChunkedArray:
        """The keys (of a prefix), ascending, tombstones left out."""
        return self.scan_table(prefix, columns=[]).column("key")

    def numbered(self, prefix: bytes) -> NumberedKeys:
        """The entries whose keys are `prefix` and a big-endian number of 8 bytes, to be read as arrays."""
        return NumberedKeys(self.file, prefix)

    # -- what is in the file ------------------------------------------------------------------------------------------

    @property
    def num_entries(self) -> int:
        """Entries of the file, tombstones counted."""
        return self.file.index.num_entries

    @property
    def num_deleted(self) -> int:
        """Tombstones of the file."""
        return self.file.index.num_deleted

    @property
    def num_blocks(self) -> int:
        """Blocks of the file."""
        return self.file.index.block_count

    @property
    def tail_bytes(self) -> int:
        """Bytes of the file's end that were read when it was opened, and are kept."""
        return self.file.tail_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self.file.source.size

    def ends(self) -> tuple[bytes, bytes]:
        """The first and the last key, tombstones counted. Raises InvalidArgumentError where there is no entry."""
        if not self.num_blocks:
            raise InvalidArgumentError(f"{self.name or 'the file'}: has no entries")
        return self.file.index.ends()

    def groups(self) -> dict[str, GroupHandle]:
        """The groups by name, in the order written."""
        return dict(self.file.footer.groups)

    def metas(self) -> list[str]:
        """The names of the metas, in the order written."""
        return list(self.file.footer.metas)

    def meta(self, name: str) -> bytes:
        """The bytes of a meta. Raises InvalidArgumentError where there is none of the name."""
        return self.file.meta(name)

    def strided_sections(self) -> dict[str, StridedSection]:
        """The strided sections by name, in the order written."""
        return dict(self.file.footer.strided)

    def read_strided(
        self, wanted: Sequence[tuple[str, Sequence[int] | np.ndarray]], gap_bytes: int = COALESCE_GAP_BYTES
    ) -> list[np.ndarray]:
        """uint8 [k, stride] each: rows of some strided sections, by name, asked of the source at once. Rows no further
        apart than `gap_bytes` are one read. Raises InvalidArgumentError for a name or a row that is not there."""
        self.file.check_open()
        from .open_file import read_strided_many

        sections = self.file.footer.strided
        requests = [(named("strided section", name, sections), rows) for name, rows in wanted]
        return read_strided_many(self.file.source, requests, gap_bytes)

    def verify(self) -> list[Finding]:
        """Reads and checks everything: header, blocks, order, rows, metas. [] where the file is sound."""
        from .inspection import findings_of

        return findings_of(self.file)

    # -- blocks -------------------------------------------------------------------------------------------------------

    def blocks(self, within: range | None = None) -> list[BlockInfo]:
        """Where blocks lie and what they span: of those `within`, a range of step 1, or of all."""
        within = self._within(within)
        return list(self.file.index.blocks(within.start, within.stop))

    def block_range(
        self, prefix: bytes | None = None, *, start: bytes | None = None, stop: bytes | None = None
    ) -> range:
        """The blocks that may hold keys that begin with `prefix`, from `start` on, before `stop`; from the index."""
        return self.file.block_range(*key_bounds(prefix, start, stop))

    def read_blocks(self, indices: Sequence[int], ahead_bytes: int = READ_AHEAD_BYTES) -> Iterator[Block]:
        """Blocks, checked, about `ahead_bytes` of them read at once. `indices` ascend. Raises InvalidArgumentError for
        a block that is not there."""
        if len(indices) and not 0 <= indices[0] <= indices[-1] < self.num_blocks:
            raise InvalidArgumentError(f"there are blocks 0 to {self.num_blocks - 1}, not {indices[0]}..{indices[-1]}")
        return self.file.blocks(indices, ahead_bytes)

    def summaries(self, columns: Sequence[str] | None = None, blocks: range | None = None) -> dict[str, Summary | None]:
        """Bounds and nulls of some value columns, or of all that have a summary, in `blocks`, a range of step 1, or in
        all; None for a column of which the file has none."""
        within = self._within(blocks)
        index = self.file.index
        return index.summaries(index.summarised if columns is None else columns, within.start, within.stop)

    def _within(self, blocks: range | None) -> range:
        count = self.num_blocks
        if blocks is None:
            return range(count)
        if (
            not isinstance(blocks, range)
            or blocks.step != 1
            or not 0 <= blocks.start <= max(blocks.start, blocks.stop) <= count
        ):
            raise InvalidArgumentError(f"{blocks!r} is no range of step 1 of the {count} blocks")
        return blocks

    def _positions(self, columns: Sequence[str] | None) -> list[int]:
        return column_positions(self.schema, columns)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes what this reader opened. Call it when no other thread reads."""
        self.file.close()

    def __enter__(self) -> SortedFileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
