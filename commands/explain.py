"""`skipstone explain`: what a scan would read, step by step, and why."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc

from ..engine.scan.explain import HEADINGS, cells, kept_lines, why
from ..engine.scan.plan import Plan
from .arguments import Option
from .options import AsJson, IndexPath, Mode, Path, Version, Where, is_local, opened
from .output import print_json, records, stdout, text_table

_NUMBERS = ("in", "out", "uncovered", "requests", "read", "ms")


def explain(
    path: Path,
    where: Where = None,
    file: Annotated[str | None, Option(metavar="FILE", help="Why this file is, or is not, read.")] = None,
    mode: Mode = "snapshot",
    version: Version = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """What a scan would read, step by step, and which index decided it."""
    with opened(path, index_path, version) as table:
        plan = table.scan(where, mode=mode)
        if file is not None:
            is_here = is_local(table.location) and os.path.exists(file)
            _print_file(plan, table.handle.relative(os.path.abspath(file) if is_here else file), as_json)
        elif as_json:
            _print_plan_json(plan)
        else:
            print_plan(plan)


def _print_file(plan: Plan, name: str, as_json: bool) -> None:
    verdict = plan.explain(name)
    if not as_json:
        stdout().print(verdict, soft_wrap=True)
        return
    reasons = plan.reasons()
    of_file = reasons.filter(pc.equal(reasons.column("path"), name)).drop_columns(["path"])
    print_json({"file": name, "verdict": verdict, "reasons": records(of_file)})


def print_plan(plan: Plan) -> None:
    """A plan's steps as a table, with the query above and remarks below."""
    lines = plan.explain().splitlines()
    screen = stdout()
    for line in lines[:2]:
        screen.print(line, soft_wrap=True)
    screen.print()
    screen.print(text_table(list(HEADINGS), [list(cells(step)) for step in plan.steps], right=_NUMBERS))
    for remark in plan.remarks:
        screen.print(f"  {remark}", style="yellow", soft_wrap=True)
    reasons = kept_lines(plan.planning)
    if reasons:
        screen.print()
        screen.print(reasons[0], style="bold")
        for line in reasons[1:]:
            screen.print(line, soft_wrap=True)


def _print_plan_json(plan: Plan) -> None:
    """The same for machines, with the row groups that would be read."""
    planning, groups = plan.planning, _by_file(plan.row_groups())
    steps = [asdict(step) for step in plan.steps]
    query = {"location": planning.location, "version": planning.instant.version, "where": str(plan.bound)}
    reasons = [{"code": one.reason.value, "leaf": str(one.part), "files": one.files} for one in why(planning)]
    print_json({**query, "steps": steps, "why_kept": reasons, "row_groups": groups})


def _by_file(groups: pa.Table) -> dict[str, list[int] | None]:
    """file -> its row groups that would be read; None where they are not known, so that all are."""
    by_file: dict[str, list[int] | None] = {}
    for row in groups.to_pylist():
        if row["row_group"] is None:
            by_file[row["path"]] = None
        else:
            by_file[row["path"]] = [*(by_file.get(row["path"]) or []), row["row_group"]]
    return by_file
