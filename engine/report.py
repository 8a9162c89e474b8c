"""A picture of a table: one page of HTML that needs no network, for people who were not there."""

from __future__ import annotations

import datetime as dt
import math
import os
import re
import statistics
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..errors import SkipstoneError, StorageError
from . import html
from .column_layout import Layout, layout_of
from .handle import Handle
from .parquet.leaves import leaf_type, leaf_types
from .predicates import col
from .scan.planning import Planning
from .scan.request import ScanRequest
from .scan.steps import bytes_text
from .scan_log import entries_of
from .views import history_view, indexes_view, partitions_view

if TYPE_CHECKING:
    from .advice.advise import Advice

_PARTITIONS_MAX, _COLUMNS_MAX, _VERSIONS_MAX, _QUERIES_MAX = 40, 24, 60, 15
_PROBES, _PROBED_INDEXES_MAX = 16, 8
_TEXT_MAX = 300


def report(
    handle: Handle, output: str | os.PathLike[str] | None, log: str | os.PathLike[str] | None, advice: Advice | None
) -> str:
    """See `Table.report`."""
    page = _page(handle, log, advice)
    if output is not None:
        _write(page, output)
    return page


def _write(page: str, output: str | os.PathLike) -> None:
    """Puts the page in its place whole, or not at all."""
    path = os.path.abspath(os.fspath(output))
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=os.path.dirname(path), prefix=".report-", suffix=".html", delete=False, encoding="utf-8"
        ) as file:
            try:
                file.write(page)
                file.close()
                os.chmod(file.name, 0o644 & ~_umask())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise StorageError(f"{path}: the report cannot be written ({error.strerror or error})") from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _page(handle: Handle, log: str | os.PathLike[str] | None, advice: Advice | None) -> str:
    name = handle.location.rstrip("/").rpartition("/")[2] or handle.location
    time = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    text = html.document(
        f"{name} · Skipstone",
        f"<h1>{html.escape(name)}</h1>",
        html.paragraph(f"{handle.location}, version {handle.version}; drawn {time}", dim=True),
        _facts(handle),
        html.section("Indexes", *_indexes(handle)),
        html.section("What scans skipped", *(() if log is None else _skipped(handle, log))),
        html.section("Advice", *(() if advice is None else _advice(advice))),
        html.section("Columns", *_columns(handle)),
        html.section("Partitions and files", *_partitions(handle)),
        html.section("Timeline", *_timeline(handle)),
    )
    # A name may hold what no encoding has: half of a surrogate pair.
    return text.encode("utf-8", "backslashreplace").decode()


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"


def _facts(handle: Handle) -> str:
    totals, indexes = handle.snapshot.instant.totals, indexes_view(handle.snapshot)
    size = sum(indexes.column("size_bytes").to_pylist())
    share = f", {size / totals['bytes']:.1%} of the data" if totals["bytes"] else ""
    return html.cards(
        [
            (bytes_text(totals["bytes"]), "of Parquet"),
            (f"{totals['files']:,}", "files"),
            (f"{totals['rows']:,}", "rows"),
            (f"{partitions_view(handle.snapshot).num_rows:,}", "partitions"),
            (f"{len(handle.schema):,}", "columns"),
            (bytes_text(size), f"of indexes{share}"),
        ]
    )


# -- indexes ----------------------------------------------------------------------------------------------------------


def _indexes(handle: Handle) -> Iterator[str]:
    total = handle.snapshot.instant.totals["bytes"]
    rows, measured = [], 0
    for row in indexes_view(handle.snapshot).to_pylist():
        files, covered = row["files_total"], row["files_covered"]
        columns = row["columns"][:8]
        names = ", ".join(columns) + (f" and {len(row['columns']) - 8:,} more" if len(row["columns"]) > 8 else "")
        wrong = "-"
        if row["kind"] == "bloom" and measured < _PROBED_INDEXES_MAX:
            wrong, measured = _false_positives(handle, columns[0]), measured + 1
        rows.append(
            (
                row["kind"],
                _shortened(names),
                html.Raw(f"{html.meter(covered / files if files else 1.0, is_short=covered < files)}"),
                f"{covered:,} of {files:,}",
                bytes_text(row["size_bytes"]),
                f"{row['size_bytes'] / total:.2%}" if total else "-",
                wrong,
            )
        )
    headings = ("index", "columns", "coverage", "files", "size", "of the data", "false positives")
    yield html.wide_grid(headings, rows, numbers=headings[3:])
    if any(row[-1] != "-" for row in rows):
        yield html.paragraph(
            f"False positives: of {_PROBES} random values that no file holds, how many files a filter let through.",
            dim=True,
        )


def _false_positives(handle: Handle, column: str) -> str:
    """How often a filter keeps a file for a random value, as text; "-" where its type has no values to draw."""
    kind = leaf_type(handle.schema, column)
    if kind is None:
        return "-"
    came_in = went_out = 0
    for _ in range(_PROBES):
        drawn: Any = uuid.uuid4().hex
        if pa.types.is_int64(kind) or pa.types.is_uint64(kind):
            drawn = uuid.uuid4().int >> 66
        elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            return "-"
        try:
            request = replace(ScanRequest.of(handle), scan_log=None)
            plan = Planning(request, col(column) == drawn)
            steps = [step for step in plan.steps if step.name == "filter"]
        except SkipstoneError:
            return "-"
        came_in += sum(step.came_in - step.uncovered for step in steps)
        went_out += sum(step.went_out - step.uncovered for step in steps)
    if not came_in:
        return "-"
    return f"{max(0, went_out) / came_in:.2%}" if went_out > 0 else f"under {1 / came_in:.2%}"


# -- columns ----------------------------------------------------------------------------------------------------------


def _columns(handle: Handle) -> Iterator[str]:
    instant = handle.snapshot.instant
    names = [name for name in leaf_types(instant.schema) if name not in instant.partitioning]
    layouts = []
    for name in names[:_COLUMNS_MAX]:
        try:
            layouts.append(layout_of(handle.snapshot, name, handle.strict))
        except SkipstoneError:  # a type without bounds
            continue
    if not layouts:
        return
    yield html.paragraph(
        "Each line is a file, from its least to its greatest value, in order of the least: the less they overlap, the "
        "fewer files a look-up reads by bounds alone.",
        dim=True,
    )
    yield f'<div class="columns">{"".join(map(_column, layouts))}</div>'
    if len(names) > _COLUMNS_MAX:
        yield html.paragraph(f"And {len(names) - _COLUMNS_MAX:,} columns more.", dim=True)


def _column(layout: Layout) -> str:
    read = f"a look-up reads {layout.share_read:.1%} of the files" if layout.files else "no files"
    ends = "".join(f"<span>{html.escape(_shortened(text))}</span>" for text in layout.domain)
    return (
        f'<div><h3>{html.escape(layout.column)} <span class="dim">{html.escape(str(layout.type))}</span></h3>'
        f'{html.ranges(layout.starts.tolist(), layout.ends.tolist())}<div class="ends">{ends}</div>'
        f"{html.paragraph(read)}{html.paragraph(' '.join(layout.advice[:1]), dim=True)}</div>"
    )


# -- partitions and files ---------------------------------------------------------------------------------------------


def _partitions(handle: Handle) -> Iterator[str]:
    rows = partitions_view(handle.snapshot).to_pylist()
    sizes = handle.snapshot.files().column("size_bytes").to_pylist()
    if len(rows) > 1:
        most = max(row["size_bytes"] for row in rows) or 1
        shown = sorted(rows if len(rows) <= _PARTITIONS_MAX else _largest(rows), key=_by_numbers)
        yield html.wide_grid(
            ("partition", "", "size", "files", "rows"),
            [
                (
                    _shortened(row["partition"]) or "-",
                    html.meter(row["size_bytes"] / most),
                    bytes_text(row["size_bytes"]),
                    f"{row['file_count']:,}",
                    f"{row['row_count']:,}",
                )
                for row in shown
            ],
            numbers=("size", "files", "rows"),
        )
        if len(shown) < len(rows):
            yield html.paragraph(f"The {len(shown):,} largest of {len(rows):,} partitions.", dim=True)
    if sizes:
        yield html.paragraph(f"Sizes of files: {_spread(sizes)}.")
        yield html.wide_grid(("file size", "", "files"), _histogram(sizes), numbers=("files",))


def _largest(rows: list[dict]) -> list[dict]:
    least = sorted((row["size_bytes"] for row in rows), reverse=True)[_PARTITIONS_MAX - 1]
    return [row for row in rows if row["size_bytes"] >= least][:_PARTITIONS_MAX]


def _by_numbers(row: dict) -> list[tuple[int, str]]:
    """Sorts "month=2" before "month=10"."""
    pieces = re.findall(r"\d+|\D+", row["partition"])
    return [(int(piece), "") if piece.isdecimal() and piece.isascii() else (-1, piece) for piece in pieces]


def _spread(sizes: list[int]) -> str:
    return f"{bytes_text(min(sizes))} to {bytes_text(max(sizes))}, median {bytes_text(statistics.median(sizes))}"


def _histogram(sizes: list[int]) -> list[tuple[str, str, str]]:
    """Files by size, each step twice the one before."""
    counts: dict[int, int] = {}
    for size in sizes:
        step = int(math.log2(size)) if size > 0 else 0
        counts[step] = counts.get(step, 0) + 1
    most = max(counts.values())
    steps = range(min(counts), max(counts) + 1)
    return [
        (
            f"{bytes_text(2**step)} to {bytes_text(2 ** (step + 1))}",
            html.meter(counts.get(step, 0) / most),
            f"{counts.get(step, 0):,}",
        )
        for step in steps
    ]


# -- timeline ---------------------------------------------------------------------------------------------------------


def _timeline(handle: Handle) -> Iterator[str]:
    rows = history_view(handle.timeline.history(handle.version), []).to_pylist()[-_VERSIONS_MAX:]
    titles = [
        f"version {row['version']}, {row['action']}: {row['files_added']:,} added, {row['files_removed']:,} removed"
        for row in rows
    ]
    yield html.paragraph("Files added by each version, above the line, and removed, below it.", dim=True)
    yield html.columns_chart([row["files_added"] for row in rows], [row["files_removed"] for row in rows], titles)
    yield html.wide_grid(
        ("version", "time", "action", "added", "removed", "files then", ""),
        [
            (
                f"{row['version']:,}",
                row["time"].strftime("%Y-%m-%d %H:%M"),
                row["action"],
                f"{row['files_added']:,}",
                f"{row['files_removed']:,}",
                f"{row['files']:,}",
                _shortened(row["detail"] or ""),
            )
            for row in rows[::-1][:_QUERIES_MAX]
        ],
        numbers=("version", "added", "removed", "files then"),
    )


# -- what scans skipped, and advice -----------------------------------------------------------------------------------


def _skipped(handle: Handle, log: str | os.PathLike) -> Iterator[str]:
    entries = [one for one in entries_of(log) if one is not None and one.get("table") == handle.location]
    entries = [one for one in entries if all(isinstance(one.get(n), int) for n in _COUNTS)]
    if not entries:
        yield html.paragraph("The log holds no scan of this table.", dim=True)
        return
    files_in, files_kept, bytes_in, bytes_kept = (sum(one[name] for one in entries) for name in _COUNTS)
    times = [one["ms"] for one in entries if isinstance(one.get("ms"), int | float)]
    yield html.cards(
        [
            (f"{len(entries):,}", "plans"),
            (f"{1 - files_kept / max(1, files_in):.1%}", "of files skipped"),
            (f"{1 - bytes_kept / max(1, bytes_in):.1%}", "of bytes skipped"),
            (bytes_text(bytes_in - bytes_kept), "need not be read"),
            (f"{statistics.median(times):,.1f} ms" if times else "-", "to plan, median"),
        ]
    )
    uses: dict[str, dict[str, int]] = {}
    for one in entries:
        for name, operators in one["filters"].items() if isinstance(one.get("filters"), dict) else ():
            for operator in operators if isinstance(operators, list) else ():
                counts = uses.setdefault(name, {})
                counts[str(operator)] = counts.get(str(operator), 0) + 1
    ranked = sorted(uses.items(), key=lambda item: -max(item[1].values(), default=0))[:_QUERIES_MAX]
    yield html.wide_grid(
        ("column", "", "compared"),
        [
            (
                _shortened(name),
                html.meter(max(counts.values(), default=0) / len(entries)),
                ", ".join(f"{operator} ×{count:,}" for operator, count in counts.items()),
            )
            for name, counts in ranked
        ],
    )
    yield html.paragraph("The predicates that kept the most bytes:")
    grouped: dict[str, list[dict]] = {}
    for one in entries:
        grouped.setdefault(one["where"], []).append(one)
    heavy = sorted(grouped.items(), key=lambda item: -sum(one["bytes_kept"] for one in item[1]))[:_QUERIES_MAX]
    yield html.wide_grid(
        ("where", "plans", "files kept", "bytes kept"),
        [
            (
                _shortened(where),
                f"{len(plans):,}",
                f"{sum(p['files_kept'] for p in plans):,} of {sum(p['files_in'] for p in plans):,}",
                bytes_text(sum(p["bytes_kept"] for p in plans)),
            )
            for where, plans in heavy
        ],
        numbers=("plans", "files kept", "bytes kept"),
    )


_COUNTS = ("files_in", "files_kept", "bytes_in", "bytes_kept")


def _advice(advice: Advice) -> Iterator[str]:
    from .advice.advise import HEADINGS, cells

    for line in advice.head():
        yield html.paragraph(line, dim=True)
    if advice.suggestions:
        yield html.wide_grid(HEADINGS, map(cells, advice.suggestions), numbers=HEADINGS[1:])
        yield f"<p>To begin with: <code>{html.escape(advice.suggestions[0].code)}</code></p>"
    for line in advice.tail():
        yield html.paragraph(line, dim=True)
