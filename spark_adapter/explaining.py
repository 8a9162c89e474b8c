"""What was skipped for a DataFrame: each scan of ours in its plan, told as `Plan.explain` tells one.

Nothing is measured here while a query runs: PySpark gives a data source of Python no metrics, so what executors read
is known to nobody but them. What they do is decided by the index alone, however, and the index can be asked again: the
scan is planned anew at the version that the DataFrame is of, with the fine indexes that executors ask, and told.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..engine.open import open_pair
from ..errors import InvalidArgumentError, NotReadableError
from .loads import loads_of
from .packing import pack

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ..engine.scan.plan import Plan
    from .request import Request


def explain(frame: DataFrame) -> str:
    """What Skipstone skips for a DataFrame, as a text for people: for each scan of ours in its plan, also below joins,
    filters and subqueries, what each index leaves of files and row groups, and into how many tasks of Spark it is
    packed. The text is worked out on the driver by planning again; no job is run, and no executor is asked.

    A filter of Spark's own is told where `scan` put it there; others (`frame.where`) prune nothing. Where no version
    was named, as in `spark.read.format("skipstone").load(path)`, the latest of now is told, which may be a later one
    than the DataFrame's.

    Over Spark Connect the client's plan is looked through; scans behind a view or SQL text are the server's, and not
    seen.

    Raises InvalidArgumentError where no scan of ours is in the plan.
    """
    requests = [load.request() for load in loads_of(frame) if load.is_scan]
    if not requests:
        raise InvalidArgumentError(
            'no scan of Skipstone is in this DataFrame; explain those of scan(), or of format("skipstone")'
        )
    told = [_told(request) for request in requests]
    if len(told) == 1:
        return told[0]
    return "\n\n".join(f"scan {at} of {len(told)}\n{text}" for at, text in enumerate(told, 1))


def _told(request: Request) -> str:
    table = open_pair(request.path, request.version, request.log_position, request.index_path, request.storage_options)
    with table:
        plan = table.scan(request.predicate_node())
        lines = [plan.explain(), "", _packed(plan, request)]
        if request.residual is not None:
            lines.append(f"Spark tests the rows that are left by {request.residual}")
        if request.version is None:
            lines.append("no version was named: this is the latest of now")
    return "\n".join(lines)


def _packed(plan: Plan, request: Request) -> str:
    """Into how many of Spark's tasks the files go."""
    try:
        tasks = plan.planning.readable_tasks()
    except NotReadableError as error:
        return f"Spark cannot read it by us: {error}"
    packs = pack(tasks, request.parallelism or os.cpu_count() or 1)
    groups = [groups.kept for _, groups in plan.planning.pairs]
    known = sum(len(kept) for kept in groups if kept is not None)
    unknown = sum(kept is None for kept in groups)
    rest = f", and all of {unknown:,} files whose row groups are not known" if unknown else ""
    return f"Spark reads {known:,} row groups{rest} of {len(tasks):,} files in {max(1, len(packs)):,} tasks"
