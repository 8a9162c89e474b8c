"""The tasks of a plan: one for each file that is kept, with all that a reader of it needs besides the context."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...arrays import from_numpy, to_numpy
from ..state.snapshot import Snapshot
from .evidence import EvidenceReader
from .survivors import Survivors
from .tasks import FileTask

_FIELDS = ["path", "size_bytes", "modified_ns", "etag", "row_count", "schema_id"]


def tasks_of(
    snapshot: Snapshot, evidence: EvidenceReader, survivors: Survivors, columns: Sequence[str], with_fine: bool = True
) -> list[FileTask]:
    """One task a file of the units that are kept; it says where the fine statistics of some columns lie, unless nobody
    asks for them (`with_fine=False`)."""
    units, files, ids = survivors.units, survivors.units.files, survivors.ids
    if files.num_rows == 0:
        return []
    partitions = _partition_values(snapshot, files)
    located = evidence.fine_locations(ids, columns) if with_fine else [()] * len(ids)
    rows = survivors.rows_matching
    filters = {
        column: evidence.without_damaged(lambda places=places: places.located(evidence.damaged))  # type: ignore[misc]
        for column, places in (survivors.fine.items() if with_fine else ())
    }
    tasks = []
    for i, row in enumerate(snapshot.rows(ids, _FIELDS).to_pylist()):
        unit = units.unit_of[i]
        tasks.append(
            FileTask(
                path=row["path"],
                size_bytes=row["size_bytes"],
                modified_ns=row["modified_ns"],
                etag=row["etag"],
                partition=partitions[i],
                row_count=row["row_count"],
                is_exact=bool(units.exact[unit]),
                schema_id=row["schema_id"],
                all_match=bool(survivors.only_true[unit]),
                may_prune=bool(units.readable[unit]),
                has_rows=bool(units.has_rows[i]),
                fine=located[i],
                rows=None if rows is None or not units.is_alone[i] else rows.of_file(i),
                rows_exact=rows is not None and bool(rows.is_exact[i]),
                filters={column: fine for column, told in filters.items() if (fine := told[i]) is not None},
            )
        )
    return tasks


def _partition_values(snapshot: Snapshot, files: pa.Table) -> list[dict[str, pa.Scalar]]:
    """The partition columns' values of each file."""
    names = snapshot.instant.partitioning
    if not names:
        return [{}] * files.num_rows
    known = to_numpy(snapshot.partitions().column("partition_id"))
    used, of_file = np.unique(to_numpy(files.column("partition_id")), return_inverse=True)
    at = from_numpy(np.searchsorted(known, used))
    values = snapshot.partition_values()
    rows = zip(*(list(values[name].take(at)) for name in names), strict=True)
    by_partition = [dict(zip(names, row, strict=True)) for row in rows]
    return [by_partition[i] for i in of_file.tolist()]
