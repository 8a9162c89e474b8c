"""Files assigned to Spark's tasks, and what one task does with its share of them.

A Python task of Spark costs tens of milliseconds in any case. So a partition of Spark contains enough bytes to be worth
one, and there are a few per core, so that an uneven one is evened out. There are more only if they would be too large,
because a cluster that grows with its work shows few cores at first. A file larger than its part of the work is divided:
its row groups are assigned by number, which every executor does in the same way without their count.

An executor needs nothing but its partition. It reads the files' own fine indexes, at offsets that the driver sent, and
the data; no footer of the index, and no instant.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base.arrays import from_numpy, to_numpy
from ..engine.parquet.footers import open_parquet
from ..engine.scan.file_reader import check_identity, matches_in_file, verify_unchanged
from ..engine.scan.file_tasks import FileTask, ReadContext, RowGroups, TaskRows
from ..engine.scan.planned_rows import slices_of, to_merge
from ..engine.scan.row_groups import row_groups_of
from ..engine.storage import Counted, Storage, open_storage
from ..engine.storage.places import is_uri
from ..engine.storage.threads import side_by_side

if TYPE_CHECKING:
    from ..engine.handle import Handle
    from ..engine.scan.planning import PlannedScan

_BULK_BYTES = 128 << 20  # when a second reader's start costs less than it saves
_BULK_FILES_MAX = 10_000
PARTITIONS_MAX = 20_000
OPEN_BYTES = 1 << 20  # what opening a file costs, as bytes of reading
_PARTITIONS_A_CORE = 3
_PARTITION_BYTES_MIN = 8 << 20  # about what is read in the time that a task costs by itself
_PARTITION_BYTES_MAX = 1 << 30  # as long as they are not too many
_FILES_AT_ONCE = 1 << 17  # whose tasks lie in the driver's memory
_CODEC = "zstd"


def split_evenly(weights: Sequence[float] | np.ndarray, parts: int) -> list[slice]:
    """Return slices of a sequence, in order, at most `parts` of about the same weight, none empty. Weights are above
    0."""
    sums = np.cumsum(weights)
    total = float(sums[-1]) if len(sums) else 0.0
    cuts = np.searchsorted(sums, np.arange(1, parts) * (total / parts)) + 1
    ends = sorted({0, len(sums), *(int(cut) for cut in cuts if cut < len(sums))})
    return [slice(low, high) for low, high in pairwise(ends)]


def can_check_files(planning: PlannedScan) -> bool:
    """Whether looking at each file first, as a read by Spark's own reader must, takes little time."""
    return not is_uri(planning.location) and len(planning.pruned.ids) <= _BULK_FILES_MAX


def check_files(planning: PlannedScan, tasks: Sequence[FileTask]) -> None:
    """Raises NotReadableError, naming the file, for one that is missing or was changed since it was indexed."""
    storage = planning.storage
    list(side_by_side(storage, lambda task: check_identity(task, storage), tasks, "skipstone-stat"))


def is_bulk_read(planning: PlannedScan) -> bool:
    """Whether so much is left that Spark's own reader is two to three times faster. Not if an index has named the rows
    or row groups, which that reader would not use."""
    if planning.instant.totals["bytes"] < _BULK_BYTES or not can_check_files(planning):
        return False
    if planning.pruned.rows_to_read is not None or planning.pruned.fine:
        return False
    return (pc.sum(planning.pruned.units.files.column("size_bytes")).as_py() or 0) >= _BULK_BYTES


@dataclass(frozen=True)
class Share:
    """The row groups of a file whose number is `number` modulo `count`."""

    task: FileTask
    number: int = 0
    count: int = 1


@dataclass(frozen=True)
class Cut:
    """Every row group of some files, dealt out as shares.

    files, numbers, counts    int32 [shares], in the order of the files
    slices                    of the shares, one a partition of Spark
    """

    files: np.ndarray
    numbers: np.ndarray
    counts: np.ndarray
    slices: list[slice]

    @classmethod
    def of(cls, sizes: np.ndarray, parallelism: int) -> Cut:
        """Partitions of about the same bytes, in order, none empty: a few a core, and `PARTITIONS_MAX` at most.

        Args:
            sizes: int64 [files], bytes.
            parallelism: how many tasks run at a time.
        """
        total = int(sizes.sum()) + OPEN_BYTES * len(sizes)
        most = min(max(_PARTITIONS_A_CORE * parallelism, total // _PARTITION_BYTES_MAX), PARTITIONS_MAX)
        count = max(1, min(total // _PARTITION_BYTES_MIN, most))
        share_counts = np.clip(-(-sizes // max(1, total // count)), 1, count).astype(np.int32)
        files = np.repeat(np.arange(len(sizes), dtype=np.int32), share_counts)
        begins = np.cumsum(share_counts, dtype=np.int32) - share_counts
        numbers = np.arange(len(files), dtype=np.int32) - np.repeat(begins, share_counts)
        counts = share_counts[files]
        return cls(files, numbers, counts, split_evenly(sizes[files] // counts + OPEN_BYTES, count))


def cut_of(planning: PlannedScan, parallelism: int) -> Cut:
    """How the files with rows that a plan leaves are dealt out, those of slices left out that are merged."""
    units = planning.pruned.units
    readable = np.flatnonzero(units.has_rows & ~to_merge(planning)[units.unit_of])
    cut = Cut.of(to_numpy(units.files.column("size_bytes"))[readable], parallelism)
    return replace(cut, files=readable[cut.files].astype(np.int32))


def packed(planning: PlannedScan, cut: Cut, files_at_once: int = _FILES_AT_ONCE) -> Iterator[bytes]:
    """The shares of each partition of Spark, for `unpacked`, made of about so many files at a time."""
    schema = share_schema(planning)
    codec, deletes = pa.Codec(_CODEC, compression_level=1), planning.context.deletes
    for _, members in groupby(cut.slices, key=lambda part: int(cut.files[part.start]) // files_at_once):
        parts = list(members)
        shares = slice(parts[0].start, parts[-1].stop)
        files = cut.files[shares] - cut.files[shares.start]
        rows = planning.task_rows(slice(int(cut.files[shares.start]), int(cut.files[shares.stop - 1]) + 1))
        of_shares = [column.take(from_numpy(files)) for column in rows.columns.combine_chunks().columns]
        dealt = [from_numpy(values[shares].astype(np.int64)) for values in (cut.numbers, cut.counts)]
        (batch,) = pa.table([*of_shares, *dealt], schema=schema).combine_chunks().to_batches()
        for part in parts:
            offset, count = part.start - shares.start, part.stop - part.start
            data = batch.slice(offset, count).serialize()
            filters = {name: [of[i] for i in files[offset : offset + count]] for name, of in rows.filters.items()}
            paths = batch.column("path").slice(offset, count).to_pylist() if deletes else []
            deleted = {path: deletes[path] for path in paths if path in deletes}
            pickled = pickle.dumps((data.size, codec.compress(data, asbytes=True), filters, deleted))
            yield bytes(memoryview(pickled))  # exactly as large: 20,000 pickles lie in 0.3 GB more


def packed_slices(planning: PlannedScan, parallelism: int) -> list[bytes]:
    """The slices that are merged, for `rows_of_slices`: one text a partition of Spark."""
    merged = to_merge(planning)
    if not merged.any():
        return []
    slices = list(slices_of(planning, merged))
    sizes = np.array([sum(task.size_bytes for task in one.tasks) + OPEN_BYTES for one in slices], dtype=np.int64)
    parts = split_evenly(sizes, min(len(slices), _PARTITIONS_A_CORE * parallelism))
    return [pickle.dumps(slices[part]) for part in parts]


def share_schema(planning: PlannedScan) -> pa.Schema:
    """Of the Arrow data of a plan's shares."""
    fields = planning.task_rows(slice(0, 0)).columns.schema
    return pa.schema([*fields, pa.field("number", pa.int64()), pa.field("count", pa.int64())])


def pack(tasks: Sequence[FileTask], parallelism: int) -> list[list[Share]]:
    """The same of some tasks, as objects: a list a partition."""
    cut = Cut.of(np.array([task.size_bytes for task in tasks], dtype=np.int64), parallelism)
    places = zip(cut.files.tolist(), cut.numbers.tolist(), cut.counts.tolist(), strict=True)
    shares = [Share(tasks[file], number, count) for file, number, count in places]
    return [shares[part] for part in cut.slices]


# -- in an executor ---------------------------------------------------------------------------------------------------


def unpacked(data: bytes, schema: pa.Schema) -> tuple[list[Share], dict[str, np.ndarray]]:
    """The shares of one partition, and the rows of their files that are no more: see `ReadContext.deletes`."""
    size_bytes, compressed, filters, deleted = pickle.loads(data)
    message = pa.Codec(_CODEC).decompress(compressed, decompressed_size=size_bytes)
    columns = pa.Table.from_batches([pa.ipc.read_record_batch(message, schema)])
    places = (columns.column(name).to_pylist() for name in ("number", "count"))
    return [Share(*each) for each in zip(TaskRows(columns, filters).tasks(), *places, strict=True)], deleted


def rows_of_shares(context: ReadContext, shares: Sequence[Share]) -> Iterator[tuple[str, pa.Table]]:
    """The matching rows of the shares, each table with the path of the file that it is from.

    Raises NotReadableError, naming the file, if one is missing or is not the one that was planned.
    """
    options = context.storage_options
    data = Counted(open_storage(context.location, options))
    index = open_storage(context.index_location, options, is_index=True)
    pruned = row_groups_of([share.task for share in shares], context, index)
    for share, groups in zip(shares, pruned, strict=True):
        dealt = groups_of_share(share, groups, data)
        if dealt.kept == []:
            continue
        for _, rows in matches_in_file(share.task, dealt, context, data):
            yield share.task.path, rows


def groups_of_share(share: Share, groups: RowGroups, data: Storage) -> RowGroups:
    """The row groups of a share. They are dealt out by number, so that executors agree though one of them may find the
    fine index damaged, and keep row groups that another prunes."""
    if share.count == 1:
        return groups
    if groups.kept is None:
        with verify_unchanged(share.task, data) as entry, open_parquet(data, entry) as file:
            return RowGroups(list(range(share.number, file.metadata.num_row_groups, share.count)))
    places = [i for i, group in enumerate(groups.kept) if group % share.count == share.number]

    def at_places(values: list | None) -> list | None:
        return None if values is None else [values[i] for i in places]

    kept, counts, matches = map(at_places, (groups.kept, groups.row_counts, groups.all_match))
    return replace(groups, kept=kept, row_counts=counts, all_match=matches)


def rows_of_slices(context: ReadContext, data: bytes, handle: Handle) -> Iterator[tuple[str, pa.Table]]:
    """The matching rows of some slices, each table with the path of a file of its slice; `handle`: of the version that
    was planned. Raises NotReadableError, naming a file, for a slice that cannot be merged, or whose base is not the one
    that was planned."""
    from ..engine.scan.file_reader import matching
    from ..engine.scan.request import ScanRequest

    request = ScanRequest.of(handle)
    assert request.merged is not None
    read = request.merged()
    for one in pickle.loads(data):
        one.check(request.storage)
        yield one.tasks[0].path, matching(one.rows(read, context), context)
