"""The report on a table: one page of HTML that needs no network."""

from __future__ import annotations

import datetime as dt
import os
import re
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import SkipstoneError, StorageError
from . import html
from .column_layout import layout_of
from .handle import Handle
from .parquet.leaves import leaf_types
from .scan.steps import bytes_text
from .scan_log import entries_of
from .shown import cells_of
from .views import history_view, indexes_view, partitions_view

if TYPE_CHECKING:
    from .advice.advise import Advice

_PARTITIONS_MAX, _COLUMNS_MAX, _VERSIONS_MAX, _QUERIES_MAX = 40, 24, 60, 15
_TEXT_MAX = 300
_COUNTS = ("files_in", "files_kept", "bytes_in", "bytes_kept")


def report(
    handle: Handle, output: str | os.PathLike[str] | None, log: str | os.PathLike[str] | None, advice: Advice | None
) -> str:
    """See `Table.report`."""
    name = handle.location.rstrip("/").rpartition("/")[2] or handle.location
    time = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = html.document(
        f"{name} · Skipstone",
        html.heading(name, f"{handle.location}, version {handle.version}; drawn {time}"),
        html.lines([_facts(handle)]),
        html.section("Indexes", html.grid(*cells_of(indexes_view(handle.snapshot)))),
        html.section("What scans skipped", *(() if log is None else _skipped(handle, log))),
        html.section("Advice", "" if advice is None else advice.html()),
        html.section("Columns", *_columns(handle)),
        html.section("Partitions", *_partitions(handle)),
        html.section("Timeline", _timeline(handle)),
    )
    page = page.encode("utf-8", "backslashreplace").decode()  # a name may contain half of a surrogate pair
    if output is not None:
        _write(page, os.path.abspath(os.fspath(output)))
    return page


def _write(page: str, path: str) -> None:
    """Write the page whole, or not at all."""
    temporary = f"{path}.{os.getpid()}.part"
    try:
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(page)
            os.replace(temporary, path)
        except BaseException:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise StorageError(f"{path}: the report cannot be written ({error.strerror or error})") from error


def _shortened(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 1]}…"


def _facts(handle: Handle) -> str:
    totals = handle.snapshot.instant.totals
    index_bytes = sum(indexes_view(handle.snapshot).column("size_bytes").to_pylist())
    share = f" ({index_bytes / totals['bytes']:.1%} of the data)" if totals["bytes"] else ""
    return (
        f"{totals['files']:,} files, {totals['rows']:,} rows and {bytes_text(totals['bytes'])} of Parquet in "
        f"{partitions_view(handle.snapshot).num_rows:,} partitions; {len(handle.schema):,} columns; "
        f"{bytes_text(index_bytes)} of indexes{share}"
    )


def _columns(handle: Handle) -> Iterator[str]:
    instant = handle.snapshot.instant
    names = [name for name in leaf_types(instant.schema) if name not in instant.partitioning]
    shown = 0
    for name in names[:_COLUMNS_MAX]:
        try:
            layout = layout_of(handle.snapshot, name, handle.strict)
        except SkipstoneError:  # a type without bounds
            continue
        if not shown:
            yield html.lines(["A line is a file, from its least to its greatest value."], dim=True)
        yield layout.html()
        shown += 1
    if len(names) > _COLUMNS_MAX:
        yield html.lines([f"and {len(names) - _COLUMNS_MAX:,} more columns"], dim=True)


def _partitions(handle: Handle) -> Iterator[str]:
    rows = partitions_view(handle.snapshot).to_pylist()
    largest = sorted(rows, key=lambda row: -row["size_bytes"])[:_PARTITIONS_MAX]
    cells = [
        (_shortened(row["partition"]) or "-", *(f"{row[name]:,}" for name in ("file_count", "row_count", "size_bytes")))
        for row in sorted(largest, key=_by_numbers)
    ]
    yield html.grid(("partition", "files", "rows", "bytes"), cells, ("files", "rows", "bytes"))
    if len(largest) < len(rows):
        yield html.lines([f"the {len(largest):,} largest of {len(rows):,} partitions"], dim=True)


def _by_numbers(row: dict) -> list[tuple[int, str]]:
    """Sorts "month=2" before "month=10"."""
    pieces = re.findall(r"\d+|\D+", row["partition"])
    return [(int(piece), "") if piece.isdecimal() and piece.isascii() else (-1, piece) for piece in pieces]


def _timeline(handle: Handle) -> str:
    rows = history_view(handle.timeline.history(handle.version)).to_pylist()[-_VERSIONS_MAX:]
    counts = ("files_added", "files_removed", "files")
    cells = [
        (
            f"{row['version']:,}",
            row["time"].strftime("%Y-%m-%d %H:%M"),
            row["action"],
            *(f"{row[name]:,}" for name in counts),
            _shortened(row["detail"] or ""),
        )
        for row in rows[::-1]
    ]
    return html.grid(
        ("version", "time", "action", "added", "removed", "files", ""), cells, ("added", "removed", "files")
    )


def _skipped(handle: Handle, log: str | os.PathLike) -> Iterator[str]:
    entries = [one for one in entries_of(log) if one is not None and one.get("table") == handle.location]
    entries = [one for one in entries if all(isinstance(one.get(n), int) for n in _COUNTS)]
    if not entries:
        yield html.lines(["The log contains no scan of this table."], dim=True)
        return
    files_in, files_kept, bytes_in, bytes_kept = (sum(one[name] for one in entries) for name in _COUNTS)
    times = [one["ms"] for one in entries if isinstance(one.get("ms"), int | float)]
    median = f"; {statistics.median(times):,.1f} ms to plan, median" if times else ""
    yield html.lines(
        [
            f"{len(entries):,} plans skipped {1 - files_kept / max(1, files_in):.1%} of files and "
            f"{1 - bytes_kept / max(1, bytes_in):.1%} of bytes ({bytes_text(bytes_in - bytes_kept)}){median}"
        ]
    )
    grouped: dict[str, list[dict]] = {}
    for one in entries:
        grouped.setdefault(one["where"], []).append(one)
    heavy = sorted(grouped.items(), key=lambda item: -sum(one["bytes_kept"] for one in item[1]))[:_QUERIES_MAX]
    cells = [
        (
            _shortened(where),
            f"{len(plans):,}",
            f"{sum(p['files_kept'] for p in plans):,} of {sum(p['files_in'] for p in plans):,}",
            bytes_text(sum(p["bytes_kept"] for p in plans)),
        )
        for where, plans in heavy
    ]
    headings = ("where", "plans", "files kept", "bytes kept")
    yield html.grid(headings, cells, headings[1:])
