"""Files dealt out to Spark's tasks, and what one task does with its share of them.

A Python task of Spark costs tens of milliseconds whatever it does. So a partition of Spark holds enough bytes to be
worth one, and there are a few a core, so that an uneven one is evened out. There are more only where they would grow
too large, because a cluster that grows with its work shows few cores at first. A file larger than its part of the work
is cut: its row groups are dealt out by number, which every executor does alike without knowing how many there are.

An executor needs nothing but its partition. It reads the files' own fine indexes, at offsets that the driver sent, and
the data; no footer of the index, and no instant.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from ..engine.parquet.footers import open_parquet
from ..engine.scan.file_reader import as_planned
from ..engine.scan.file_tasks import FileTask, ReadContext, RowGroups
from ..engine.scan.fine import row_groups_of
from ..engine.scan.rows import read_matches
from ..engine.storage import Counted, Storage, open_storage

_PARTITIONS_A_CORE = 3
_PARTITION_BYTES_MIN = 8 << 20  # about what is read in the time that a task costs by itself
_PARTITION_BYTES_MAX = 1 << 30
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
    """Every row group of every task, in lists of about the same bytes; a few lists a core, none empty.

    Args:
        parallelism: how many tasks run at a time.
    """
    total = sum(Share(task).size_bytes for task in tasks)
    most = max(_PARTITIONS_A_CORE * parallelism, total // _PARTITION_BYTES_MAX)
    packs_max = max(1, min(total // _PARTITION_BYTES_MIN, most))
    shares = [share for task in tasks for share in _cut(task, total // packs_max, packs_max)]
    count = min(packs_max, len(shares))
    packs: list[list[Share]] = [[] for _ in range(count)]
    sizes = [(0, number) for number in range(count)]  # (bytes, pack): a heap, the smallest first
    for share in sorted(shares, key=lambda s: s.size_bytes, reverse=True):
        size_bytes, number = sizes[0]
        packs[number].append(share)
        heapq.heapreplace(sizes, (size_bytes + share.size_bytes, number))
    return packs


def _cut(task: FileTask, pack_bytes: int, packs_max: int) -> list[Share]:
    count = min(max(1, -(-task.size_bytes // pack_bytes)), packs_max)
    return [Share(task, number, count) for number in range(count)]


# -- in an executor ---------------------------------------------------------------------------------------------------


def rows_of_shares(context: ReadContext, shares: Sequence[Share]) -> Iterator[tuple[str, pa.Table]]:
    """The matching rows of the shares, each table with the path of the file that it is from.

    Raises NotReadableError, naming the file, where one is gone or is not the one that was planned.
    """
    options = context.storage_options
    data = Counted(open_storage(context.location, options))
    index = open_storage(context.index_location, options, is_index=True)
    pruned = row_groups_of([share.task for share in shares], context, index)
    for share, groups in zip(shares, pruned, strict=True):
        dealt = groups_of_share(share, groups, data)
        if dealt.kept == []:
            continue
        for rows in read_matches(share.task, dealt, context, data):
            yield share.task.path, rows


def groups_of_share(share: Share, groups: RowGroups, data: Storage) -> RowGroups:
    """The row groups of a share. They are dealt out by number, so that executors agree though one of them may find the
    fine index damaged, and keep row groups that another prunes."""
    if share.count == 1:
        return groups
    if groups.kept is None:
        with as_planned(share.task, data) as entry, open_parquet(data, entry) as file:
            return RowGroups(list(range(share.number, file.metadata.num_row_groups, share.count)))
    places = [i for i, group in enumerate(groups.kept) if group % share.count == share.number]

    def at_places(values: list | None) -> list | None:
        return None if values is None else [values[i] for i in places]

    kept, counts, matches = map(at_places, (groups.kept, groups.row_counts, groups.all_match))
    return replace(groups, kept=kept, row_counts=counts, all_match=matches)
