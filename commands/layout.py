"""`skipstone layout`: a picture of the [min, max] of each file over a column's domain, and what it means."""

from __future__ import annotations

import sys
import textwrap
from typing import Annotated

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from ..engine.column_layout import Layout
from .arguments import Argument, AsJson, IndexPath, Option, Path, Version, opened
from .output import count_of, print_json, stdout

_WIDTH_MAX, _UNWATCHED_WIDTH = 120, 100
_SHADES = (" ░▒▓█", " .:+#")  # none of a line's files, up to a quarter, half, three quarters, more
_HEIGHTS = ("▁▂▃▄▅▆▇█", ".:-=+*%#")
_CORNERS = ("└─┴┘", "+-++")
_FIGURES = (
    *("files", "files_with_bounds", "files_without_values", "files_unknown", "lower", "upper"),
    *("depth_mean", "depth_p50", "depth_p99", "depth_max", "share_read"),
)


def layout(
    path: Path,
    column: Annotated[str, Argument(metavar="COLUMN", help="A column, or a.b in a struct.")],
    lines: Annotated[int, Option(minimum=1, help="At most this many lines; files share one where they are more.")] = 24,
    ascii_: Annotated[bool, Option("--ascii", help="Draw with ASCII characters only.")] = False,
    version: Version = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Draw each file's least and greatest value of a column: whether it distinguishes files, and what helps."""
    with opened(path, index_path, version) as table:
        spread = table.layout(column)
        location, at = table.location, table.version
    if as_json:
        figures = {name: getattr(spread, name) for name in _FIGURES}
        head = {"location": location, "version": at, "column": spread.column, "type": str(spread.type)}
        print_json({**head, **figures, "advice": spread.advice})
    else:
        _print_layout(spread, location, lines, ascii_)


def _print_layout(spread: Layout, location: str, lines_max: int, as_ascii: bool) -> None:
    """Print the picture, the figures and the advice."""
    screen = stdout()
    as_ascii = as_ascii or not _can_show(_SHADES[0] + _HEIGHTS[0] + _CORNERS[0])
    width = min(screen.width, _WIDTH_MAX if screen.is_terminal else _UNWATCHED_WIDTH)
    screen.print(
        Text.assemble((spread.column, "bold"), f" ({spread.type}) in {count_of(spread.files, 'file')} of {location}"),
        soft_wrap=True,
    )
    if spread.files_with_bounds:
        screen.print()
        for line in picture(spread, width, lines_max, as_ascii):
            screen.print(line, soft_wrap=True)
        screen.print()
    for name, figure in spread.figures():
        screen.print(Text.assemble((f"{name:<17}", "dim"), figure), soft_wrap=True)
    if spread.advice:
        screen.print()
    for sentence in spread.advice:
        for piece in textwrap.wrap(sentence, width):
            screen.print(Text(piece, style="yellow"), soft_wrap=True)


def picture(spread: Layout, width: int, lines_max: int, as_ascii: bool) -> list[Text]:
    """Return one line per file, or per some files, in order of their minimum; then the domain, and how many files reach
    over each place of it."""
    width = max(width - 2, 10)
    shades, corners = _SHADES[as_ascii], _CORNERS[as_ascii]
    files = spread.files_with_bounds
    covered, shares = _raster(spread, min(files, lines_max), width)
    levels = np.ceil(shares * (len(shades) - 1)).astype(np.int64)
    drawn = [Text.assemble(" ", ("".join(shades[level] for level in row).rstrip(), "cyan")) for row in levels.tolist()]
    axis = [corners[1]] * width
    for place, _ in spread.labels:
        axis[min(int(place * width), width - 1)] = corners[2]
    axis[0], axis[-1] = corners[0], corners[3]
    depths = covered.sum(axis=0)
    notes = [f"below: how many files reach over each place, at most {int(depths.max()):,}"]
    if len(drawn) < files:
        notes.insert(0, f"a line shows {_span(files, len(drawn))} files, darker where more of them reach")
    return [
        *drawn,
        Text(f" {''.join(axis)}"),
        Text(f" {_labels(spread.labels, width)}"),
        Text.assemble(" ", (_depths(depths, as_ascii), "magenta")),
        *(Text(f" {note}", "dim") for note in notes),
    ]


def _raster(spread: Layout, lines: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how many files of each line reach over each place (int64 [lines, width]), and which share of them."""
    first = np.minimum((spread.starts * width).astype(np.int64), width - 1)
    last = np.maximum(np.minimum(np.ceil(spread.ends * width).astype(np.int64) - 1, width - 1), first)
    line_of = np.arange(len(first)) * lines // len(first)
    covered = np.zeros((lines, width + 1), dtype=np.int64)
    np.add.at(covered, (line_of, first), 1)
    np.add.at(covered, (line_of, last + 1), -1)
    covered = covered.cumsum(axis=1)[:, :-1]
    return covered, covered / np.bincount(line_of, minlength=lines)[:, None]


def _span(files: int, lines: int) -> str:
    low, high = files // lines, -(-files // lines)
    return f"{low:,}" if low == high else f"{low:,} or {high:,}"


def _depths(depths: np.ndarray, as_ascii: bool) -> str:
    heights = _HEIGHTS[as_ascii]
    steps = np.ceil(depths / depths.max() * len(heights)).astype(np.int64)
    return "".join(" " if step == 0 else heights[step - 1] for step in steps.tolist()).rstrip()


def _labels(labels: tuple[tuple[float, str], ...], width: int) -> str:
    """Return labels below their places: always the ends, the others if there is room."""
    if len(labels) == 1:
        return labels[0][1]
    (_, first), *between, (_, last) = labels
    if cell_len(first) + cell_len(last) + 2 > width:
        return f"{first} … {last}"
    placed = [(0, first)]
    right = width - cell_len(last)
    for place, text in between:
        start = int(place * width) - cell_len(text) // 2
        if start >= placed[-1][0] + cell_len(placed[-1][1]) + 2 and start + cell_len(text) + 2 <= right:
            placed.append((start, text))
    line = ""
    for start, text in [*placed, (right, last)]:
        line += " " * (start - cell_len(line)) + text
    return line


def _can_show(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
