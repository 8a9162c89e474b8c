"""`skipstone slices`: what is read of each file group, or every slice that it has."""

from __future__ import annotations

import pyarrow as pa

from .output import bytes_text, count_of, print_json, records, stdout, table


def print_slices(found: pa.Table, as_json: bool) -> None:
    """The slices, one a line, as `Table.slices` tells them."""
    if as_json:
        print_json(records(found))
        return
    rows = found.to_pylist()
    cells = [
        [
            row["partition"] or "(all)",
            row["file_group"] or "-",
            row["slice_instant"] or "-",
            row["base"] or "-",
            bytes_text(row["base_size_bytes"]) if row["base"] else "-",
            f"{row['log_count']:,}" if row["log_count"] else "-",
            bytes_text(row["log_bytes"]) if row["log_count"] else "-",
            _state(row),
        ]
        for row in rows
    ]
    headings = ["partition", "file group", "instant", "base", "size", "logs", "their size", "state"]
    screen = stdout()
    screen.print(table(headings, cells, right=["size", "logs", "their size"]))
    compacted = sum(row["is_compacted"] for row in rows)
    screen.print(f"{count_of(len(rows), 'slice')}, {compacted:,} of them without logs", style="dim")


def _state(row: dict) -> str:
    if not row["is_latest"]:
        return "superseded" if row["base"] or row["log_count"] else "dead"
    return "pending" if row["is_pending"] else "read"
