"""`explain`: what was skipped for a DataFrame, for each of our scans in its plan, as `Plan.explain` shows it.

Nothing is measured while a query runs: PySpark gives a data source of Python no metrics. But the index alone decides
what executors read, so the scan is planned again at the DataFrame's version, with the fine indexes that executors use.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from ..engine.scan.planned_rows import to_merge
from ..engine.scan.steps import count_of
from ..errors import InvalidArgumentError, NotReadableError
from . import catalyst
from .columns import where_node, where_of
from .sessions import find_relations
from .shares import cut_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..engine.scan.plan import Plan
    from .options import Request


def explain(frame: DataFrame) -> str:
    """Return what Skipstone skips for a DataFrame, as a text: for each scan of Skipstone in its plan, also below joins,
    filters and subqueries, the files and row groups that remain after each index, and the number of Spark's tasks. The
    driver plans again; no job is run.

    The text shows a filter of Spark if `scan` added it. Other filters (`frame.where`) prune nothing, and the text says
    so: `optimized` passes them to the scan. If the load named no version, as in
    `spark.read.format("skipstone").load(path)`, the text describes the latest version, which may be later than that of
    the DataFrame.

    Raises InvalidArgumentError if the plan contains no scan of Skipstone, and over Spark Connect.
    """
    if not catalyst.is_classic(frame.sparkSession):
        raise InvalidArgumentError(
            "over Spark Connect a query's plan is the server's alone: skipstone.open(path).scan(where).explain() shows "
            "what a scan skips"
        )
    scans = [(each.request(), each.is_scan) for each in find_relations(frame)]
    if not scans:
        raise InvalidArgumentError(
            'no scan of Skipstone is in this DataFrame; explain those of scan(), or of format("skipstone")'
        )
    texts = [_explained(request, is_ours) for request, is_ours in scans]
    is_whole = any(request.where is request.residual is None for request, _ in scans)
    if is_whole and catalyst.has_filter(catalyst.optimized_plan(frame)):
        texts[-1] += (
            "\n\nSpark's own filter above a scan does not use the index; sks.optimized(df) passes it to the scan"
        )
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(f"scan {number} of {len(texts)}\n{text}" for number, text in enumerate(texts, 1))


def _explained(request: Request, is_ours: bool) -> str:
    with request.open() as table:
        plan = table.scan(where_node(where_of(request), table.schema), mode=request.mode)
        lines = [plan.explain(), "", _tasks_line(plan, request) if is_ours else _files_line(plan)]
        if request.residual is not None:
            lines.append(f"Spark tests the remaining rows by {request.residual}")
        if request.version is None:
            lines.append("no version was named: this is the latest one now")
    return "\n".join(lines)


def _files_line(plan: Plan) -> str:
    """What a scan that was passed reads."""
    files = plan.planning.pruned.units.files
    size_bytes = pc.sum(files.column("size_bytes")).as_py() or 0
    return (
        f"handed over: Spark's own Parquet reader reads these {files.num_rows:,} files, {size_bytes:,} bytes with all "
        "columns, and prunes row groups by their footers"
    )


def _tasks_line(plan: Plan, request: Request) -> str:
    """How many of Spark's tasks read how much."""
    try:
        plan.planning.check_evaluable()
        merged = to_merge(plan.planning)
        plan.planning.check_readable(~merged)
    except NotReadableError as error:
        return f"Spark cannot read it through this data source: {error}"
    cut = cut_of(plan.planning, request.parallelism or os.cpu_count() or 1)
    files = len(np.unique(cut.files))
    groups = [groups.kept for _, groups in plan.planning.pairs]
    row_groups = sum(len(kept) for kept in groups if kept is not None)
    unknown = sum(kept is None for kept in groups)
    rest = f", and all of {unknown:,} files whose row groups are not known" if unknown else ""
    rest += f", and {int(merged.sum()):,} slices that the reader of their own format merges" if merged.any() else ""
    tasks = count_of(max(1, len(cut.slices)), "task")
    return f"Spark reads {count_of(row_groups, 'row group')}{rest} of {count_of(files, 'file')} in {tasks}"
