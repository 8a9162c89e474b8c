"""`explain`: what was skipped for a DataFrame, for each scan of ours in its plan, as `Plan.explain` shows it.

Nothing is measured while a query runs: PySpark gives a data source of Python no metrics. But the index alone decides
what executors read, so the scan is planned anew at the DataFrame's version, with the fine indexes that executors use.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..engine.open import open_pair
from ..errors import InvalidArgumentError, NotReadableError
from .loads import has_unused_filter, loads_of
from .shares import pack
from .where_text import where_node, where_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..engine.scan.plan import Plan
    from .options import Request


def explain(frame: DataFrame) -> str:
    """What Skipstone skips for a DataFrame, as a text for people: for each scan of ours in its plan, also below joins,
    filters and subqueries, the files and row groups that each index leaves, and the number of Spark's tasks. The driver
    plans again; no job is run.

    A filter of Spark's own is shown where `scan` added it; others (`frame.where`) prune nothing, and the
    text says so: `optimized` gives them to the scan. Where no version was
    named, as in `spark.read.format("skipstone").load(path)`, the text is about the latest version, which may be later
    than the DataFrame's. Over Spark Connect, scans behind a view or SQL text are known to the server alone and left
    out.

    Raises InvalidArgumentError where no scan of ours is in the plan.
    """
    requests = [load.request() for load in loads_of(frame) if load.is_scan]
    if not requests:
        raise InvalidArgumentError(
            'no scan of Skipstone is in this DataFrame; explain those of scan(), or of format("skipstone")'
        )
    texts = [_explained(request) for request in requests]
    if has_unused_filter(frame):
        texts[-1] += "\n\nSpark's own filter above a scan prunes nothing; sks.optimized(df) gives it to the scan"
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(f"scan {number} of {len(texts)}\n{text}" for number, text in enumerate(texts, 1))


def _explained(request: Request) -> str:
    table = open_pair(request.path, request.version, request.log_position, request.index_path, request.storage_options)
    with table:
        plan = table.scan(where_node(where_of(request), table.schema))
        lines = [plan.explain(), "", _tasks_line(plan, request)]
        if request.first_rows is not None:
            first = request.first_rows
            by = "" if first.order_by is None else f" by {', '.join(' '.join(key) for key in first.order_by)}"
            lines[-1] = f"one task of Spark takes the first {first.limit:,} rows{by}, of these or fewer row groups"
        if request.residual is not None:
            lines.append(f"Spark tests the remaining rows by {request.residual}")
        if request.version is None:
            lines.append("no version was named: this is the latest one now")
    return "\n".join(lines)


def _tasks_line(plan: Plan, request: Request) -> str:
    """How many of Spark's tasks read how much."""
    try:
        tasks = plan.planning.readable_tasks()
    except NotReadableError as error:
        return f"Spark cannot read it through this data source: {error}"
    packs = pack(tasks, request.parallelism or os.cpu_count() or 1)
    groups = [groups.kept for _, groups in plan.planning.pairs]
    row_groups = sum(len(kept) for kept in groups if kept is not None)
    unknown = sum(kept is None for kept in groups)
    rest = f", and all of {unknown:,} files whose row groups are not known" if unknown else ""
    return f"Spark reads {row_groups:,} row groups{rest} of {len(tasks):,} files in {max(1, len(packs)):,} tasks"
