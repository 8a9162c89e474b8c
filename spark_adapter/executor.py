"""The executor's part: one partition's files, their row groups pruned, their matching rows as Arrow batches.

All that it needs came with the partition. It reads the files' own fine parts, at offsets that the driver sent, and the
data; no footer of the index, and no instant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from ..engine.parquet.footers import open_parquet
from ..engine.scan.file_reader import as_planned
from ..engine.scan.fine import row_groups_of
from ..engine.scan.rows import read_matches
from ..engine.scan.tasks import ReadContext, RowGroups
from ..engine.storage import Counted, Storage, open_storage
from .packing import Share
from .translate import wire_batches


def read_shares(context: ReadContext, wire: pa.Schema, shares: Sequence[Share]) -> Iterator[pa.RecordBatch]:
    """The matching rows of the shares, in the types of `wire`. Raises as `rows_of_shares`."""
    for path, rows in rows_of_shares(context, shares):
        yield from wire_batches(rows, wire, path)


def rows_of_shares(context: ReadContext, shares: Sequence[Share]) -> Iterator[tuple[str, pa.Table]]:
    """The matching rows of the shares, each time with the file that they are from.

    Raises NotReadableError, naming the file, where one is gone or is not the one that was planned.
    """
    options = context.storage_options
    data, index = Counted(open_storage(context.location, options)), open_storage(context.index_location, options)
    pruned = row_groups_of([share.task for share in shares], context, index)
    for share, found in zip(shares, pruned, strict=True):
        groups = own_groups(share, found, data)
        if groups.kept == []:
            continue
        for rows in read_matches(share.task, groups, context, data):
            yield share.task.path, rows


def own_groups(share: Share, groups: RowGroups, data: Storage) -> RowGroups:
    """The row groups of a share. They are dealt out by number, so that executors agree though one of them may find the
    fine index damaged, and keep row groups that another prunes."""
    if share.count == 1:
        return groups
    if groups.kept is None:
        with as_planned(share.task, data) as entry, open_parquet(data, entry) as file:
            return RowGroups(list(range(share.number, file.metadata.num_row_groups, share.count)))
    at = [i for i, group in enumerate(groups.kept) if group % share.count == share.number]

    def own(values: list | None) -> list | None:
        return None if values is None else [values[i] for i in at]

    return replace(groups, kept=own(groups.kept), row_counts=own(groups.row_counts), all_match=own(groups.all_match))
