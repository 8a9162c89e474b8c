"""`skipstone inspect`: what one sorted-block file contains, and where its bytes go."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import numpy as np

from ..errors import CorruptionError
from ..hfile_like import Finding, SortedFileReader
from ..hfile_like.footer import FORMAT_VERSION
from .arguments import Argument, AsJson, Option, Status
from .output import answer, cell, print_json, print_rows, working

_LISTED_MAX = 10


def inspect(
    file: Annotated[str, Argument(metavar="FILE", help="A sorted-block file.")],
    verify: Annotated[bool, Option(help="Check every byte; status 3 if one is wrong.")] = False,
    as_json: AsJson = False,
) -> Status:
    """Show what one sorted-block file contains: blocks, groups, sections, and where its bytes go."""
    findings: list[Finding] = []
    with SortedFileReader(file) as reader:
        if verify:
            with working("reading every byte"):
                findings = reader.verify()
        summary = _summary(reader, _sizes(reader, findings))
    if verify:
        summary["findings"] = [asdict(finding) for finding in findings]
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary)
        answer(False, None, *(["every byte was checked: sound"] if verify and not findings else []))
    return Status.FINDINGS if findings else Status.OK


def _sizes(reader: SortedFileReader, findings: list[Finding]) -> list[dict[str, Any]]:
    """Return the bytes of each section, "tombstones", "keys" or a value column, in all blocks; none if known damage
    prevents it."""
    names = ["tombstones", "keys", *reader.schema.names]
    totals = np.zeros((len(names), 2), dtype=np.int64)
    try:
        for block in reader.read_blocks(range(reader.num_blocks)):
            totals += block.section_sizes()
    except CorruptionError:
        if not findings:
            raise
        return []
    heads = ("name", "stored_bytes", "uncompressed_bytes")
    return [dict(zip(heads, (name, *sizes), strict=True)) for name, sizes in zip(names, totals.tolist(), strict=True)]


def _summary(reader: SortedFileReader, sizes: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "path": reader.name,
        "format_version": FORMAT_VERSION,
        "size_bytes": reader.size_bytes,
        "entries": reader.num_entries,
        "tombstones": reader.num_deleted,
        "schema": {f.name: str(f.type) for f in reader.schema},
        "sections": sizes,
        "blocks": [
            {**block._asdict(), "first_key": _text(block.first_key), "last_key": _text(block.last_key)}
            for block in reader.blocks()
        ],
        "groups": [asdict(group) for group in reader.groups().values()],
        "row_tables": [{**asdict(s), "length": s.length_bytes} for s in reader.row_tables().values()],
        "metas": reader.metas(),
    }


def _text(key: bytes) -> str:
    return repr(key)[2:-1]  # ASCII as it is, other bytes as \\xff


def _print_summary(summary: dict[str, Any]) -> None:
    """Print each list of records as a table, with its first rows, and before them all other values."""
    parts = {name: rows for name, rows in summary.items() if isinstance(rows, list) and name != "metas"}
    answer(False, None, *(f"{name:<16}{cell(value)}" for name, value in summary.items() if name not in parts))
    for name, rows in parts.items():
        if rows:
            answer(False, None, "", name)
            print_rows(rows[:_LISTED_MAX], list(rows[0]), len(rows))
