"""Blocks that look-ups read again and again: those of one file that were used last, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from .block import Block

# Beside its bytes, for each entry: where its key begins, and whether each value is null.
_ENTRY_BYTES = 16


class BlockCache:
    """Shared by threads; the lock is held for a step of the list, never while a block is read or decoded.

    A block is held as it was read, and keeps what was decompressed of it: that is counted when it comes in.
    """

    def __init__(self, capacity_bytes: int):
        self.capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, Block] = OrderedDict()
        self.size_bytes = 0

    def get(self, i: int) -> Block | None:
        """Block i, which is now the one that was used last; None where it is not held."""
        with self._lock:
            block = self._blocks.get(i)
            if block is not None:
                self._blocks.move_to_end(i)
            return block

    def hold(self, read: Sequence[tuple[int, Block]]) -> None:
        """Holds blocks that were read, in memory of their own, if there is room for all of them: a look-up of many keys
        all over the file must not push out what is looked up again."""
        if sum(_size_bytes(block) for _, block in read) > self.capacity_bytes:
            return
        owned = [(i, block.owned()) for i, block in read]
        with self._lock:
            for i, block in owned:
                if i not in self._blocks:
                    self._blocks[i] = block
                    self.size_bytes += _size_bytes(block)
            while self.size_bytes > self.capacity_bytes:
                self.size_bytes -= _size_bytes(self._blocks.popitem(last=False)[1])

    def drop(self, i: int) -> None:
        """Lets go of a block: one that turned out damaged must not answer for a file that is sound again."""
        with self._lock:
            block = self._blocks.pop(i, None)
            if block is not None:
                self.size_bytes -= _size_bytes(block)


def _size_bytes(block: Block) -> int:
    return block.length_bytes + block.plain_bytes + (_ENTRY_BYTES + len(block.schema)) * block.entries
