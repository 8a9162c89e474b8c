"""Many files into few partitions.

A Python task of Spark costs tens of milliseconds whatever it does, so a partition holds enough bytes to be worth one,
and there are a few a core, so that an uneven one is evened out; more only where they would grow too large, because a
cluster that grows with its work shows few cores at first. A file larger than its share of the work is cut: its
row groups are dealt out by number, which every executor decides alike without knowing how many there are.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.scan.tasks import FileTask

_PACKS_A_CORE = 3
_PACK_BYTES_MIN = 8 << 20  # about what is read in the time that a task costs by itself
_PACK_BYTES_MAX = 1 << 30
_OPEN_BYTES = 1 << 20  # opening a file and asking its fine index, as bytes of reading


@dataclass(frozen=True)
class Share:
    """The row groups of a file whose number is `number` modulo `count`."""

    task: FileTask
    number: int = 0
    count: int = 1

    @property
    def size_bytes(self) -> int:
        """What it may cost to read, at most."""
        return self.task.size_bytes // self.count + _OPEN_BYTES


def pack(tasks: Sequence[FileTask], parallelism: int) -> list[list[Share]]:
    """Every row group of every task, in lists of much the same bytes; a few lists a core, none empty.

    Args:
        parallelism: how many tasks run at a time.
    """
    total = sum(Share(task).size_bytes for task in tasks)
    packs_max = max(1, min(total // _PACK_BYTES_MIN, max(_PACKS_A_CORE * parallelism, total // _PACK_BYTES_MAX)))
    shares = [share for task in tasks for share in _cut(task, total // packs_max, packs_max)]
    count = min(packs_max, len(shares))
    packs: list[list[Share]] = [[] for _ in range(count)]
    filled = [(0, number) for number in range(count)]  # (bytes, pack): a heap, the least filled first
    for share in sorted(shares, key=lambda s: s.size_bytes, reverse=True):
        size_bytes, number = filled[0]
        packs[number].append(share)
        heapq.heapreplace(filled, (size_bytes + share.size_bytes, number))
    return packs


def _cut(task: FileTask, pack_bytes: int, packs_max: int) -> list[Share]:
    count = min(max(1, -(-task.size_bytes // pack_bytes)), packs_max)
    return [Share(task, number, count) for number in range(count)]
