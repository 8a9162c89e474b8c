"""Where keys of a DataFrame may lie: the ranges that they span, and the files that an index does not cover."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..base.arrays import to_numpy
from ..engine.indexes.row_index import covered_by
from ..engine.predicates import Constant, Node
from ..engine.scan.lookup import span_of
from ..engine.scan.planning import PlannedScan
from .jobs import run_action
from .spark_versions import collected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..engine.progress import Progress
    from ..engine.state import IndexState
    from ..engine.table import Table


def uncovered_units(plan: PlannedScan, table: Table, index: IndexState) -> np.ndarray:
    """bool [units]: those of which the index does not hold all rows."""
    units = plan.pruned.units
    ids = to_numpy(units.files.column("file_id"))
    covered = units.is_single_file_slice & covered_by(table.handle.snapshot, index, ids)
    uncovered = np.zeros(units.count, dtype=bool)
    uncovered[units.unit_of[~covered]] = True
    return uncovered


def key_range(keys: DataFrame, names: Sequence[str], progress: Progress | None = None) -> Node:
    """The ranges in which keys lie, whose columns are k0, k1 and so on. Runs a job."""
    ends = [f"{end}(k{i}) as {end}{i}" for i in range(len(names)) for end in ("min", "max")]
    row = run_action(keys.sparkSession, partial(collected, keys.selectExpr(*ends)), "range of keys", progress)
    columns = [
        pa.chunked_array([*row.column(f"min{i}").chunks, *row.column(f"max{i}").chunks]) for i in range(len(names))
    ]
    if columns[0].null_count:
        return Constant(False)
    return span_of(pa.table(columns, names=list(names)))
