"""The event of a plan for `observing.py`, and its line of the scan log, once its files are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from ..observing import Event

if TYPE_CHECKING:
    from .request import ScanRequest, SortKey
    from .steps import Step
    from .units import PruningState

_COLUMNS_MAX = 100


def _figures(request: ScanRequest, remaining: PruningState, steps: Sequence[Step]) -> dict[str, int]:
    totals, files = request.snapshot.instant.totals, remaining.units.files
    return {
        "files_in": totals["files"],
        "files_kept": files.num_rows,
        "bytes_in": totals["bytes"],
        "bytes_kept": pc.sum(files.column("size_bytes")).as_py() or 0,
        "requests": sum(step.requests for step in steps),
        "index_bytes": sum(step.bytes_read for step in steps),
        "waits": sum(step.waits for step in steps),
    }


def event_of(request: ScanRequest, predicate_text: str, remaining: PruningState, steps: Sequence[Step]) -> Event:
    """The event: `steps` are those that led to the remaining."""
    figures = _figures(request, remaining, steps)
    location, version = request.storage.uri, request.snapshot.instant.version
    elapsed_ms = sum(step.elapsed_ms for step in steps)
    text = (
        f"scan of {location} version {version} where {predicate_text}: {figures['files_in']:,} files -> "
        f"{figures['files_kept']:,}, {elapsed_ms:,.1f} ms, {figures['requests']:,} requests, "
        f"{figures['index_bytes']:,} bytes"
    )
    return Event("plan", location, version, elapsed_ms, figures, text, [str(step) for step in steps])


def log_entry(
    request: ScanRequest,
    columns: Sequence[str],
    order_by: Sequence[SortKey],
    remaining: PruningState,
    steps: Sequence[Step],
) -> dict[str, Any]:
    """What a line of the scan log says beside the predicate."""
    return {
        "table": request.storage.uri,
        "version": request.snapshot.instant.version,
        "columns": None if request.columns is None else columns[:_COLUMNS_MAX],
        "order_by": [key.column for key in order_by],
        "limit": request.limit,
        **_figures(request, remaining, steps),
        "ms": round(sum(step.elapsed_ms for step in steps), 3),
    }
