"""Rows that an index with included columns has, so that no data file is read for them.

The index answers for the files that it covers; the others are read. Its rows are tested by the whole predicate, as rows
of files are, and rows that a log deletes are left out. Files are compared with storage as for other answers from
metadata (rule 47).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...base.arrays import from_numpy, to_numpy
from ...errors import CorruptionError
from ..indexes.row_index import covered_by
from ..indexes.secondary.included import StoredRows, rows_of_entries, stored_rows_for
from ..predicates import Node, top_columns
from .file_reader import cast_column, matching
from .file_tasks import PARTITION, ReadContext, partition_values

if TYPE_CHECKING:
    from ..state import IndexState
    from .planning import PlannedScan


@dataclass
class IndexAnswer:
    """Units whose matching rows an index has.

    stored   rows outside of which none matches
    names    the columns that are needed: those to return, and those of the predicate
    units    bool [kept units]
    """

    plan: PlannedScan
    stored: Sequence[StoredRows]
    names: Sequence[str]
    units: np.ndarray

    @property
    def is_whole(self) -> bool:
        """True if no data file is left to be read."""
        return bool(self.units.all())

    @property
    def text(self) -> str:
        """What is answered, for people."""
        label, units = self.stored[0].label, self.plan.pruned.units
        if self.is_whole:
            return f"answered by index {label}, no data file read"
        of_files = self.units[units.unit_of]
        return f"{int(of_files.sum()):,} of {len(of_files):,} files answered by index {label}, the others are read"

    def rows(self, context: ReadContext) -> pa.Table:
        """The matching rows in the columns of `context`. Units that turn out to be in a damaged run are no longer among
        `units`. Raises NotReadableError for files that changed."""
        plan = self.plan
        plan.check_readable(self.units)
        with plan.reporting_changes():
            plan.check_files(self.units, every=None)
        with plan.step("rows", "rows") as step:
            step.index = self.stored[0].label
            found = plan.evidence.retry_without_damaged_runs(self._rows_of_entries)
            rows = matching(found, context)
            step.came_in, step.went_out, step.note = found.num_rows, rows.num_rows, self.text
        return rows

    def _rows_of_entries(self) -> pa.Table:
        """The rows of all entries, in the columns that are needed, less those that were deleted."""
        plan, schema = self.plan, self.plan.context.schema
        damaged = plan.evidence.damaged
        self.units = self.units & _covered(plan, self.stored[0].index)
        kept = plan.pruned.selected(self.units)
        places = self.stored[0].places(plan.instant)
        stored = {name: places[name] for name in self.names if name not in plan.instant.partitioning}
        hits, columns = rows_of_entries(self.stored, stored, kept.ids, damaged)
        order = np.argsort(kept.ids, kind="stable")
        file = order[np.searchsorted(kept.ids[order], hits.file_ids)]
        files = kept.units.files
        partitions = partition_values(plan.snapshot, files.column("partition_id"))
        paths = files.column("path").to_pylist()
        too_far = hits.rows >= to_numpy(files.column("row_count"))[file]
        if (too_far & kept.units.exact[kept.units.unit_of][file]).any():
            path = paths[file[np.flatnonzero(too_far)[0]]]
            message = f"an index names a row of {path} that it does not have; drop the index and create it again"
            raise CorruptionError(message, path=path, check="positions")
        live = np.ones(len(file), dtype=bool)
        for number, path in enumerate(paths):
            deleted = plan.deletes.rows.get(path)
            if deleted is not None:
                live &= (file != number) | ~np.isin(hits.rows, deleted)
        arrays = []
        for name in self.names:
            dtype = schema.field(name).type
            if name in stored:
                arrays.append(_in_type(columns[name], dtype, name))
            else:
                arrays.append(partitions[PARTITION + name].take(from_numpy(file)).cast(dtype))
        fields = [pa.field(name, schema.field(name).type) for name in self.names]
        rows = pa.Table.from_arrays(arrays, schema=pa.schema(fields)) if arrays else pa.table({"": pa.nulls(len(file))})
        return rows if live.all() else rows.filter(from_numpy(live))


def answer_by_index(plan: PlannedScan, columns: Sequence[str], chosen: np.ndarray | None = None) -> IndexAnswer | None:
    """The units, of all that are kept or of those chosen (bool [units]), whose matching rows an index has in some
    columns; None if there are none."""
    names = columns_needed(plan, columns)
    for stored in _by_index(plan):
        units = _covered(plan, stored[0].index)
        units = units if chosen is None else units & chosen
        if not _missing(plan, stored, names) and units.any():
            return IndexAnswer(plan, stored, names, units)
    return None


def index_lines(plan: PlannedScan) -> list[str]:
    """What `explain` shows of indexes with included columns: whether one answers, and if not, why."""
    if not plan.pruned.stored or not plan.pruned.count:
        return []
    answer = answer_by_index(plan, plan.columns)
    if answer is not None:
        return [answer.text]
    lines = []
    for stored in _by_index(plan):
        missing = _missing(plan, stored, columns_needed(plan, plan.columns))
        why = f"does not contain {', '.join(missing)}" if missing else "covers none of the files"
        lines.append(f"{stored[0].label} {why}, so data files are read")
    return lines


def columns_needed(plan: PlannedScan, columns: Sequence[str]) -> tuple[str, ...]:
    """Some columns, and those of the predicate."""
    return tuple(dict.fromkeys([*columns, *top_columns(plan.bound)]))


def _missing(plan: PlannedScan, stored: Sequence[StoredRows], names: Sequence[str]) -> list[str]:
    """The columns that an index does not have."""
    places = stored[0].places(plan.instant)
    return [name for name in names if name not in places and name not in plan.instant.partitioning]


def _by_index(plan: PlannedScan) -> list[list[StoredRows]]:
    """By index: rows outside of which none matches."""
    by_index: dict[int, dict[Node, StoredRows]] = {}
    for one in plan.pruned.stored:
        by_index.setdefault(one.index.id, {})[one.part] = one
    choices = [stored_rows_for(plan.bound, by_part) for by_part in by_index.values()]
    return [stored for stored in choices if stored]


def _covered(plan: PlannedScan, index: IndexState) -> np.ndarray:
    """bool [units]: the units of one file that the index covers."""
    pruned = plan.pruned
    units = pruned.units
    covered = covered_by(plan.snapshot, index, pruned.ids, plan.evidence.damaged) & units.is_single_file_slice
    chosen = np.zeros(units.count, dtype=bool)
    chosen[units.unit_of[covered]] = True
    return chosen


def _in_type(values: pa.Array, dtype: pa.DataType, name: str) -> pa.ChunkedArray:
    """Stored values in the table's type, which has each of them exactly."""
    if isinstance(dtype, pa.BaseExtensionType):
        stored = _in_type(values, dtype.storage_type, name)
        return pa.chunked_array([pa.ExtensionArray.from_storage(dtype, chunk) for chunk in stored.chunks], dtype)
    return cast_column(pa.chunked_array([values]), dtype, "an index", name)
