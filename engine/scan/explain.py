"""A plan as a text that a person can act on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ..predicates import unknowns
from .slices import slices_of
from .steps import Step

if TYPE_CHECKING:
    from .plan import Plan

_OUTCOMES = {
    0: "the indexes contradict each other, so nothing is excluded",
    1: "true for every row",
    2: "false for every row",
    3: "may be true (range overlaps, or a filter says it may be there)",
    4: "null for every row",
    5: "true or null",
    6: "never true",
    7: "may be true, and nothing is excluded (no statistics, or nulls and a range that overlaps)",
}
HEADINGS = ("step", "in", "out", "index", "uncovered", "requests", "read", "ms")


def of_plan(plan: Plan) -> str:
    """The steps as a table, and what a person should know besides."""
    instant = plan.instant
    lines = [f"scan of {plan.location} version {instant.version}", f"where {plan.bound}"]
    lines += ["", *_table(plan.steps)]
    return "\n".join([*lines, *(f"  {remark}" for remark in remarks(plan))])


def remarks(plan: Plan) -> list[str]:
    """What a person should know besides the steps."""
    told = [f"{step.name}: {step.note}" for step in plan.steps if step.note]
    for part in unknowns(plan.bound):
        told.append(f"not understood, so it prunes nothing: {part.text} ({part.reason})")
    told += [f"damaged and left out: {path}; verify() tells more" for path in plan.damaged]
    if plan.instant.pending:
        told.append(f"{len(plan.instant.pending)} files are pending: not whole Parquet when they were listed")
    return told


def _table(steps: list[Step]) -> list[str]:
    rows = [HEADINGS, *(cells(step) for step in steps)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    return ["  ".join(_aligned(row, widths)).rstrip() for row in rows]


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    names = {0, 3}  # the columns of words; the others are numbers
    padded = enumerate(zip(row, widths, strict=True))
    return [cell.ljust(w) if i in names else cell.rjust(w) for i, (cell, w) in padded]


def cells(step: Step) -> tuple[str, ...]:
    """A step as texts, under HEADINGS."""
    return (
        step.name,
        f"{step.came_in:,}",
        f"{step.went_out:,}",
        step.index or "-",
        f"{step.uncovered:,}" if step.uncovered else "-",
        f"{step.requests:,}",
        bytes_text(step.bytes_read),
        f"{step.elapsed_ms:.1f}",
    )


def bytes_text(count: float) -> str:
    """A number of bytes in a unit that suits it."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError


def reasons(plan: Plan, place: int) -> list[str]:
    """One line a leaf of the predicate: what its indexes leave possible in the kept file at that place."""
    unit = plan.pruned.units.unit_of[place]
    told = []
    for leaf, outcomes in plan.pruned.outcomes.items():
        found = int(outcomes[unit])
        told.append(f"{leaf}: {_OUTCOMES[found]}")
    return told


def left_out(plan: Plan, files: pa.Table, place: int) -> str:
    """Why the live file at that place is not among those that the plan keeps."""
    states = plan.instant.commit_states
    slices = slices_of(files, states)
    if slices.is_dead[place]:
        commit = files.column("commit")[place].as_py()
        return f"skipped: it carries nothing, the commit {commit!r} that wrote it is {states[commit]}"
    if not slices.live()[place]:
        return "skipped: a later slice of its file group took its place"
    if not slices.live(plan.mode)[place]:
        return "skipped: a read-optimized scan reads bases alone"
    return "skipped: no row of it can match"


def of_file(plan: Plan, path: str) -> str:
    """Why one file is, or is not, read."""
    verdict = plan.verdict(path)
    return f"{path}: {verdict}"
