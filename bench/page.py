"""Write the page of all results, bench/results/README.md, and its pictures, from the json files in that folder.

A row is won if Skipstone takes at most as long as the best peer of the same run. Other contenders named skipstone are
not peers. The floor is shown next to them. The reason for each lost row is in bench/results/lost.toml.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import dropwhile, takewhile
from typing import Any
from xml.sax.saxutils import escape

from bench.support.harness import RESULTS, time_text

# In the order of the page.
_BENCHMARKS = (
    "needle",
    "usual_queries",
    "rows_by_key",
    "parts",
    "planning",
    "serve",
    "first_rows",
    "listing",
    "spark",
    "cold",
    "sorted_file",
    "bloom",
)
_ROWS_MAX = 8  # per benchmark
_EVEN = 1.1  # ours / theirs up to which a row is even
_PICTURE = {
    "A needle among 30 M rows": ("needle", ["uuid, hit", "uuid, miss", "1,000 uuids"]),
    "Planning over a million files": ("planning", ["clustered point, cold", "random point, plain names"]),
    "Top-k of 6 M rows": ("first_rows", ["newest 100 by ts", "newest 100 by amount", "newest 100 by user"]),
}
_SHOWN_PEERS = 4
_THEMES = {
    "light": {"text": "#1f2328", "faint": "#59636e", "grid": "#d1d9e0", "ours": "#0969da", "theirs": "#afb8c1"},
    "dark": {"text": "#f0f6fc", "faint": "#9198a1", "grid": "#3d444d", "ours": "#4493f8", "theirs": "#656c76"},
}


@dataclass(frozen=True)
class Row:
    """One task: `ours` and `floor_s` in seconds; the peers as (name, seconds, ours / theirs), the best first."""

    task: str
    ours_s: float
    peers: list[tuple[str, float, float]]
    floor_s: float | None

    @property
    def verdict(self) -> str:
        ratio = self.peers[0][2]
        return "won" if ratio <= 1 else "even" if ratio <= _EVEN else "**lost**"


def main() -> None:
    documents = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    lost = RESULTS / "lost.toml"
    reasons = tomllib.loads(lost.read_text(encoding="utf-8")) if lost.exists() else {}
    for theme in _THEMES:
        (RESULTS / f"results-{theme}.svg").write_text(_picture(documents, theme), encoding="utf-8")
    (RESULTS / "README.md").write_text("\n".join([*_page(documents, reasons), ""]), encoding="utf-8")
    print(RESULTS / "README.md")


def rows_of(document: dict[str, Any]) -> list[Row]:
    """Return the rows of a result that have a contender of kind "us" and a peer."""
    rows = []
    for task in dict.fromkeys(case["row"] for case in document["cases"]):
        cases = [case for case in document["cases"] if case["row"] == task and case["median_s"] is not None]
        ours = next((case for case in cases if case["kind"] == "us"), None)
        peers = [
            (case["contender"], case["median_s"], 1 / case["ratio_to_us"])
            for case in cases
            if case["kind"] == "peer" and not case["contender"].startswith("skipstone")
        ]
        floors = [case["median_s"] for case in cases if case["kind"] == "floor"]
        if ours is not None and peers:
            peers.sort(key=lambda peer: peer[1])
            rows.append(Row(task, ours["median_s"], peers, min(floors, default=None)))
    return rows[:_ROWS_MAX]


# -- the page ----------------------------------------------------------------------------------------------------------


def _page(documents: dict[str, Any], reasons: dict[str, dict[str, str]]) -> Iterator[str]:
    tables = {name: rows_of(documents[name]) for name in _BENCHMARKS if name in documents}
    every = [row for rows in tables.values() for row in rows]
    verdicts = [row.verdict for row in every]
    yield from ("# Results", "")
    yield "This page compares Skipstone with the best other system in each task. Each table is one run on one machine:"
    yield "compare the times within a row. *ours / theirs* is the median ratio over the rounds: up to 1 Skipstone won,"
    yield "up to 1.1 the row is even (before rounding). The *floor* is a simple program of the same run that knows"
    yield "where the answer is, or writes it without a commit; Skipstone can be faster. Linked pages have all rows and"
    yield "systems, with the inverse ratio, `/ us`. `make bench NAME=page` writes this page."
    yield ""
    yield '<picture><source media="(prefers-color-scheme: dark)" srcset="results-dark.svg">'
    yield '<img alt="Times of Skipstone and of the best other systems" src="results-light.svg"></picture>'
    yield ""
    yield f"{verdicts.count('won')} rows won, {verdicts.count('even')} even, {verdicts.count('**lost**')} lost."
    yield from _waits(documents)
    for name, rows in tables.items():
        yield from (
            "",
            f"## {documents[name]['title']}",
            "",
            f"[{name}.md]({name}.md), `make bench NAME={name}`",
            "",
        )
        if not rows:
            yield from _targets(documents[name])
            continue
        yield "| task | ours | best peer | theirs | ours / theirs | floor | | why |"
        yield "| --- | ---: | --- | ---: | ---: | ---: | --- | --- |"
        for row in rows:
            peer, peer_s, ratio = row.peers[0]
            known = reasons.get(name, {}) if row.verdict == "**lost**" else {}
            why = next((reason for pattern, reason in known.items() if fnmatch(row.task, pattern)), "")
            cells = [row.task, time_text(row.ours_s), peer, time_text(peer_s), f"{ratio:.3g}", time_text(row.floor_s)]
            yield f"| {' | '.join([*cells, row.verdict, why])} |"
    others = [name for name in documents if name not in tables]
    yield from ("", "More: " + ", ".join(f"[{name}]({name}.md)" for name in others) + ".")


def _targets(document: dict[str, Any]) -> list[str]:
    """Return the verdicts of a result without peers: each row against a floor of the same run, and the limit of their
    ratio."""
    lines = list(dropwhile(lambda line: line != "## Targets", document["sections"]))[2:]
    return list(takewhile(lambda line: line.startswith("|"), lines))


def _waits(documents: dict[str, Any]) -> Iterator[str]:
    counts = documents.get("waits", {}).get("counts", {})
    if counts:
        yield from ("", "## Requests that wait for an earlier one, on an object store", "")
        yield from ("| | requests in sequence |", "| --- | ---: |")
        for name, count in counts.items():
            yield f"| {name} | {count} |"


# -- the picture -------------------------------------------------------------------------------------------------------


def _picture(documents: dict[str, Any], theme: str) -> str:
    """Return bars on a logarithmic axis: ours and the best peers of some rows."""
    colors = _THEMES[theme]
    shapes: list[str] = []
    top, left, width, bar = 46.0, 250, 500, 15
    low, high = -4, 1  # powers of ten of a second
    place = lambda seconds: left + width * (math.log10(min(max(seconds, 10**low), 10**high)) - low) / (high - low)  # noqa: E731

    def text(x: float, y: float, words: str, color: str = "text", more: str = "") -> None:
        shapes.append(f'<text x="{x:.0f}" y="{y:.0f}" fill="{colors[color]}" {more}>{escape(words)}</text>')

    def line(label: str, value: float, shown: str, is_ours: bool) -> None:
        nonlocal top
        text(left - 8, top + 11, label, "text" if is_ours else "faint", 'text-anchor="end"')
        color = colors["ours" if is_ours else "theirs"]
        size = max(2.0, value - left)
        shapes.append(f'<rect x="{left}" y="{top:.0f}" width="{size:.0f}" height="{bar - 4}" fill="{color}" rx="2"/>')
        text(left + size + 6, top + 10, shown, "text" if is_ours else "faint")
        top += bar

    text(8, 16, "Time of one call, less is better (logarithmic)", "faint")
    for title, (name, prefixes) in _PICTURE.items():
        every = rows_of(documents.get(name, {"cases": []}))
        starts = [[row for row in every if row.task.startswith(prefix)][:1] for prefix in prefixes]
        rows = [row for first in starts for row in first]
        if not rows:
            continue
        text(8, top + 12, title, more='font-weight="600"')
        top += 22
        for row in rows:
            text(8, top + 11, row.task, "faint")
            top += bar
            line("Skipstone", place(row.ours_s), time_text(row.ours_s), True)
            for peer, seconds, _ in row.peers[:_SHOWN_PEERS]:
                line(peer, place(seconds), time_text(seconds), False)
            top += 8
        top += 6
    axis_end = top
    counts = documents.get("waits", {}).get("counts", {})
    if counts:
        text(8, top + 12, "Requests in sequence on an object store", more='font-weight="600"')
        top += 22
        for what, count in counts.items():
            line(what, left + 14 * count, str(count), True)
    for power in range(low, high + 1):
        x = place(10**power)
        ends = f'x1="{x:.0f}" x2="{x:.0f}" y1="40" y2="{axis_end:.0f}"'
        shapes.insert(0, f'<line {ends} stroke="{colors["grid"]}"/>')
        text(x, 34, time_text(10**power), "faint", 'text-anchor="middle"')
    size = f'width="{left + width + 90}" height="{top + 12:.0f}" viewBox="0 0 {left + width + 90} {top + 12:.0f}"'
    font = 'font-family="system-ui, sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>{"".join(shapes)}</svg>\n'


if __name__ == "__main__":
    main()
