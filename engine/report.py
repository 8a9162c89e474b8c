"""The report on a table: one page of HTML that needs no network."""

from __future__ import annotations

import datetime as dt
import os
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import SkipstoneError
from . import html
from .column_layout import layout_of
from .handle import Handle
from .parquet.leaves import leaf_types
from .scan.steps import bytes_text
from .scan_log import entries_of
from .shown import cells_of
from .storage.local import LocalStorage
from .views import history_view, indexes_view, partitions_view

if TYPE_CHECKING:
    from .advice.advise import Advice

_PARTITIONS_MAX, _COLUMNS_MAX, _VERSIONS_MAX = 40, 24, 60
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
        LocalStorage(os.curdir).put(os.path.abspath(output), page.encode())
    return page


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
    rows = partitions_view(handle.snapshot)
    largest = rows.sort_by([("size_bytes", "descending")]).slice(0, _PARTITIONS_MAX).sort_by("partition")
    yield html.grid(*cells_of(largest.select(["partition", "file_count", "row_count", "size_bytes"])))
    if len(largest) < len(rows):
        yield html.lines([f"the {len(largest):,} largest of {len(rows):,} partitions"], dim=True)


def _timeline(handle: Handle) -> str:
    newest_first = history_view(handle.timeline.history(handle.version)).sort_by([("version", "descending")])
    names = ["version", "time", "action", "files_added", "files_removed", "files", "detail"]
    return html.grid(*cells_of(newest_first.slice(0, _VERSIONS_MAX).select(names)))


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
