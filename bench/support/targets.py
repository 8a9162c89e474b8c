"""Targets of a benchmark and whether its run met them: ours / reference, at most t / p.

A target's reference is a contender of the same run: of the same row where that is a peer (the ratio is then the median
of the ratios within a round), of another row where the floor of that row tells how fast this machine is today.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Target:
    """Of a row: our time over the reference's, at most `ours / reference` of these two figures.

    row          the row whose time of ours is judged
    against      the contender that is the reference, of `row` or of `against_row`
    ours, theirs the two figures that were asked for, in one unit; `theirs` is what the reference once took
    """

    row: str
    against: str
    ours: float
    theirs: float
    against_row: str | None = None

    @property
    def ratio_max(self) -> float:
        return self.ours / self.theirs


def verdicts(targets: Sequence[Target], figures: Sequence[dict[str, Any]]) -> list[str]:
    """A section of a report: a line a target. `figures` is what `Bench.figures` gives."""
    lines = [
        "## Targets",
        "",
        "| task | ours | against | theirs | ours / theirs | at most | |",
        "| --- | ---: | --- | ---: | ---: | ---: | --- |",
    ]
    for target in targets:
        ours = next(f for f in figures if f["row"] == target.row and f["kind"] == "us")
        row = target.against_row or target.row
        theirs = next(f for f in figures if f["row"] == row and f["contender"] == target.against)
        if target.against_row is None:
            ratio = 1 / theirs["ratio_to_us"]
        else:
            ratio = ours["median_s"] / theirs["median_s"]
        reference = target.against if target.against_row is None else f"{target.against}: {target.against_row}"
        verdict = "won" if ratio <= target.ratio_max else "**lost**"
        lines.append(
            f"| {target.row} | {_ms(ours)} | {reference} | {_ms(theirs)} | {ratio:.3g} | "
            f"{target.ours:g} / {target.theirs:g} = {target.ratio_max:.3g} | {verdict} |"
        )
    return lines


def _ms(figure: dict[str, Any]) -> str:
    return f"{figure['median_s'] * 1e3:.3g} ms"
