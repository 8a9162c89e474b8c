"""How a notebook shows a table: from what the handle has read already."""

from __future__ import annotations

from .handle import Handle
from .html import grid, heading, lines, page
from .scan.explain import bytes_text

_COLUMNS_SHOWN = 20


def table_page(handle: Handle) -> str:
    """See `Table._repr_html_`."""
    instant = handle.snapshot.instant
    totals = instant.totals
    facts = [f"{totals['files']:,} files", f"{totals['rows']:,} rows", bytes_text(totals["bytes"])]
    if instant.partitioning:
        facts.append(f"partitioned by {', '.join(instant.partitioning)}")
    indexes = [
        (
            f"{index.kind}({', '.join(map(instant.path_of, index.columns))})",
            bytes_text(sum(r.size_bytes for r in index.runs)),
        )
        for index in instant.indexes
        if index.columns
    ]
    shown = [(field.name, str(field.type)) for field in list(handle.schema)[:_COLUMNS_SHOWN]]
    more = len(handle.schema) - len(shown)
    return page(
        heading("Table", f"{handle.location} version {handle.version}"),
        lines([", ".join(facts)]),
        grid(["index", "size"], [(_shortened(name), size) for name, size in indexes], numbers=["size"]),
        grid(["column", "type"], shown),
        lines([f"and {more:,} more columns: table.schema"] if more else (), dim=True),
    )


def _shortened(text: str, width: int = 80) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
