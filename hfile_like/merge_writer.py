"""The writer of a merge: entries that are in order already, and blocks as they lie in a run."""

from __future__ import annotations

import os
from typing import BinaryIO, Unpack

import numpy as np
import pyarrow as pa

from .block_copies import StoredBlocks
from .entries import Entries
from .index_rows import BlockInfo
from .merge_cursor import Stored, out_of_order
from .reader import SortedFileReader
from .settings import carried_over
from .summaries import BlockSummary, summarise
from .writer import SortedFileWriter, WriterOptions

# Blocks that are decoded and not copied, together: a few stored bytes may be a thousand times as many.
_DECODED_BYTES = 2 << 20


class MergingWriter(SortedFileWriter):
    """A writer that takes whole blocks too. What it encodes itself before a block that is copied is cut evenly, so that
    a block that was laid over stays one, and leaves no crumbs before the next."""

    def __init__(
        self,
        target: str | os.PathLike[str] | BinaryIO,
        like: SortedFileReader,
        *,
        schema: pa.Schema,
        **options: Unpack[WriterOptions],
    ):
        """`like`: the run whose settings are those of the new file, where they are left open."""
        super().__init__(target, schema=schema, **options)
        self._sample = None
        self._set(carried_over(self._asked, like.properties, like.dictionary))

    def add(self, entries: Entries, *, is_followed: bool) -> None:
        """Adds entries of the schema, ascending, above all that were added before; `is_followed`: next comes a block
        that is copied, or nothing."""
        sizes = entries.row_bytes()
        total = self._pending_bytes + int(sizes.sum())
        blocks = max(1, round(total / self._block_bytes)) if is_followed else 1
        self._full_bytes = -(-total // blocks) if is_followed else self._block_bytes
        self._add_cut(entries, sizes)
        self._last_key = entries.keys[len(entries) - 1].as_py()

    def may_copy(self, info: BlockInfo) -> bool:
        """Whether a block is as this writer would have it: of about its size, within one prefix."""
        cut = self._cut_prefix_bytes
        if not self._block_bytes <= 2 * info.plain_bytes <= 4 * self._block_bytes:
            return False
        return not cut or info.first_key[:cut] == info.last_key[:cut]

    def copy(self, stored: Stored) -> None:
        """Adds blocks as they lie, but decodes those that need another dictionary than this file's, those that are
        compressed where this file is not, and those before which entries wait that are too few to be a block.
        Raises CorruptionError where a checksum does not match."""
        found = StoredBlocks(stored.data, stored.infos, len(self.schema))
        _check(stored, found)
        apart = found.compressed if self._compressor is None else found.need_dictionary
        if self._compressor is not None and apart.any():
            apart = apart & (self._settings.dictionary_bytes != stored.cursor.reader.dictionary)
        at, count = 0, len(stored.infos)
        while at < count:
            if apart[at] or self._wait_for_more(stored.infos[at].first_key):
                high, size = at + 1, stored.infos[at].plain_bytes
                while high < count and apart[high] and size < _DECODED_BYTES:
                    size += stored.infos[high].plain_bytes
                    high += 1
                self.add(stored.part(at, high).entries(), is_followed=True)
            else:
                rest = apart[at:]
                high = at + int(rest.argmax()) if rest.any() else count
                self._copy(stored.part(at, high), found, at)
            at = high

    def _wait_for_more(self, key: bytes) -> bool:
        """Whether what waits to be a block is little, and may share one with `key`."""
        return bool(self._pending) and 2 * self._pending_bytes < self._block_bytes and not self._begins_anew(key)

    def _copy(self, stored: Stored, found: StoredBlocks, low: int) -> None:
        self._flush()
        if self._key_filter is not None:
            for block in stored.blocks():
                self._key_filter.add(block.keys.to_arrow())
        shift = self._offset - stored.infos[0].offset
        moved = found.moved(low, low + len(stored.infos), self._offset)
        infos = [BlockInfo(info.offset + shift, *info[1:]) for info in stored.infos]
        self._put_blocks(moved, infos, self._summaries_of(stored))
        self._last_key = stored.infos[-1].last_key

    def _summaries_of(self, stored: Stored) -> dict[str, list[BlockSummary]]:
        """The summaries of some blocks: those of their run, where it has them."""
        names = self._index.summarised
        kept = stored.cursor.reader.summaries(names, range(stored.first, stored.first + len(stored.infos)))
        found = {name: each.rows() for name, each in kept.items() if each is not None}
        missing = [name for name in names if name not in found]
        if missing:
            positions = [self.schema.get_field_index(name) for name in missing]
            rows = [
                [summarise(block.column(i).to_arrow(), block.deleted()) for i in positions] for block in stored.blocks()
            ]
            found.update(zip(missing, map(list, zip(*rows, strict=True)), strict=True))
        return found


def _check(stored: Stored, found: StoredBlocks) -> None:
    """Raises CorruptionError where blocks are damaged, or do not hold the tombstones that the index names."""
    if not found.are_sound:
        for block in stored.blocks():
            block.check()
        raise out_of_order("blocks are not those that the index names", stored.cursor.reader, stored.infos[0])
    told = np.array([info.deleted for info in stored.infos])
    for i in np.flatnonzero(found.may_hold_tombstones | (told > 0)).tolist():
        deleted = next(stored.part(i, i + 1).blocks()).deleted()
        if told[i] != (0 if deleted is None else int(deleted.sum())):
            message = "a block does not hold the tombstones that the index names"
            raise out_of_order(message, stored.cursor.reader, stored.infos[i])
