"""What bench/sorted_file.py tells below its rows: a table a column, who won each cell, and why a cell is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.support.sorted_file_contender import US

MEMCPY, MEMCPY_BYTES, MEMCPY_MS = "memcpy of 137 MB", 137_000_000, 10


@dataclass(frozen=True)
class CellTarget:
    """Ours over a peer's at most `ours / theirs`, these two in one unit; where no peer is named, over this run's memcpy
    of 137 MB, both in ms. Of bytes, at most `ours`."""

    ours: float
    theirs: float
    against: str = MEMCPY


@dataclass(frozen=True)
class Cell:
    """A cell of a column's table, in seconds or bytes: who did it, how fast, and the floor's best. `ratios`: ours over
    each peer's, where that is not the one over the other: the median over the rounds."""

    task: str
    times: dict[str, float]
    floor: float | None = None
    is_bytes: bool = False
    calls: int = 1  # how many of what is told a time is of
    ratios: dict[str, float] = field(default_factory=dict)

    def ratio(self, peer: str) -> float:
        return self.ratios.get(peer) or self.times[US] / self.times[peer]


def cells(column: str, figures: Sequence[dict[str, Any]], calls: dict[str, int]) -> list[Cell]:
    """The cells of a column from the rows `column: task`."""
    column_cells = []
    for row in dict.fromkeys(f["row"] for f in figures if f["row"].startswith(f"{column}: ")):
        of = [f for f in figures if f["row"] == row]
        task = row.removeprefix(f"{column}: ")
        times = {f["contender"]: f["median_s"] for f in of if f["kind"] != "floor"}
        floors = [f["median_s"] for f in of if f["kind"] == "floor"]
        ratios = {f["contender"]: 1 / f["ratio_to_us"] for f in of if f["kind"] == "peer"}
        column_cells.append(Cell(task, times, min(floors, default=None), calls=calls.get(task, 1), ratios=ratios))
    return column_cells


def section(title: str, rows: Sequence[Cell], targets: dict[str, CellTarget], memcpy_s: float) -> list[str]:
    """A table: a line a cell."""
    who = list(dict.fromkeys(name for cell in rows for name in cell.times))
    lines = [
        f"## {title}",
        "",
        f"| | {' | '.join(who)} | floor | asked | |",
        f"| --- |{' ---: |' * (len(who) + 1)} --- | --- |",
    ]
    for cell in rows:
        shown = [_shown(cell, cell.times.get(name)) for name in who]
        task = cell.task if cell.calls == 1 else f"{cell.task}, each"
        target, verdict = _verdict(cell, targets.get(cell.task), memcpy_s)
        lines.append(f"| {task} | {' | '.join(shown)} | {_shown(cell, cell.floor)} | {target} | {verdict} |")
    return lines


def _verdict(cell: Cell, wanted: CellTarget | None, memcpy_s: float) -> tuple[str, str]:
    ours = cell.times[US]
    if wanted is None:
        ratios = {name: cell.ratio(name) for name in cell.times if name != US}
        faster = sorted((name for name, ratio in ratios.items() if ratio > 1), key=ratios.__getitem__, reverse=True)
        if not ratios:
            return "", ""
        if not faster:
            return "first", "won"
        if cell.floor is not None and cell.floor >= 0.75 * ours:
            return "75% of the floor", "won"
        return "first", f"**lost** to {', '.join(f'{name} ({ratios[name]:.2g}x)' for name in faster)}"
    if cell.is_bytes:
        over = (ours - wanted.ours) / 1e6
        return f"{wanted.ours / 1e6:g} MB", "won" if over <= 0 else f"**lost** by {over:.1f} MB"
    ratio = ours / cell.calls / memcpy_s if wanted.against == MEMCPY else cell.ratio(wanted.against)
    most = wanted.ours / wanted.theirs
    verdict = "won" if ratio <= most else "**lost**"
    return f"{wanted.ours:g} / {wanted.theirs:g} of {wanted.against}: {most:.3g}", f"{verdict}: {ratio:.3g}"


def _shown(cell: Cell, value: float | None) -> str:
    if value is None:
        return ""
    if cell.is_bytes:
        return f"{value / 1e6:,.1f} MB" if value >= 1e6 else f"{value / 1e3:,.1f} kB"
    value = max(0.0, value / cell.calls)
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{value / size:,.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"
