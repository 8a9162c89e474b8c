"""`skipstone inspect`: what one sorted-block file contains, and where its bytes go."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import numpy as np

from ..errors import CorruptionError, NotATableError
from ..hfile_like import Finding, PathSource, SortedFileReader
from ..hfile_like.footer import FORMAT_VERSION, HEADER
from .arguments import Argument, AsJson, Option, Status
from .output import bytes_text, count_of, print_json, print_rows, stdout, working

_LISTED_MAX = 10
_MAGIC = HEADER[:6]


def inspect(
    file: Annotated[str, Argument(metavar="FILE", help="A sorted-block file.")],
    verify: Annotated[bool, Option(help="Check every byte; status 3 if one is wrong.")] = False,
    as_json: AsJson = False,
) -> Status:
    """Show what one sorted-block file contains: header, blocks, groups, sections, and where its bytes go."""
    with _reader(file) as reader:
        findings: list[Finding] | None = None
        if verify:
            with working("reading every byte"):
                findings = reader.verify()
        summary = _summary(reader, _sizes(reader, findings))
        if as_json:
            print_json(summary if findings is None else {**summary, "findings": [asdict(each) for each in findings]})
        else:
            _print_summary(reader, summary)
            _print_findings(findings)
    return Status.FINDINGS if findings else Status.OK


def _reader(path: str) -> SortedFileReader:
    """Raise NotATableError if it is not a sorted-block file at all, CorruptionError if it is damaged."""
    try:
        return SortedFileReader(path)
    except CorruptionError:
        source = PathSource(path)
        begins = bytes(source.read_ranges([(0, len(_MAGIC))])[0])
        source.close()
        if begins != _MAGIC:
            raise NotATableError(f"{path}: is not a sorted-block file, which begins with {_MAGIC.decode()}") from None
        raise


def _sizes(reader: SortedFileReader, findings: list[Finding] | None) -> list[dict[str, Any]]:
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


def key_text(key: bytes) -> str:
    """Return a key as a text: itself if it is printable, else 0x and its bytes in hexadecimal."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and text and not text.startswith("0x") else f"0x{key.hex()}"


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
            {**b._asdict(), "first_key": key_text(b.first_key), "last_key": key_text(b.last_key)}
            for b in reader.blocks()
        ],
        "groups": [asdict(group) for group in reader.groups().values()],
        "row_tables": [{**asdict(s), "length": s.length_bytes} for s in reader.row_tables().values()],
        "metas": reader.metas(),
    }


def _print_summary(reader: SortedFileReader, summary: dict[str, Any]) -> None:
    screen, size = stdout(), bytes_text(reader.size_bytes)
    screen.print(f"{reader.name}: sorted-block file, version {FORMAT_VERSION}, {size}", soft_wrap=True)
    deleted = f", {count_of(reader.num_deleted, 'tombstone')} among them" if reader.num_deleted else ""
    block_count = count_of(reader.num_blocks, "block")
    screen.print(f"{count_of(reader.num_entries, 'entry', 'entries')}{deleted}, in {block_count}")
    screen.print("key → " + (", ".join(f"{f.name} {f.type}" for f in reader.schema) or "no values"))
    if reader.metas():
        screen.print("metas: " + ", ".join(reader.metas()), soft_wrap=True)
    stored = [{"section": s["name"], **s} for s in summary["sections"] if s["uncompressed_bytes"]]
    largest_first = sorted(stored, key=lambda section: -section["stored_bytes"])
    _print_part(largest_first, ["section", "stored_bytes", "uncompressed_bytes"])
    _print_part(summary["blocks"], ["offset", "length", "entries", "first_key", "last_key"])
    _print_part(summary["groups"], ["name", "offset", "length", "entries", "block_count"])
    _print_part(summary["row_tables"], ["name", "offset", "length", "rows"])


def _print_part(rows: list[dict[str, Any]], names: list[str]) -> None:
    if rows:
        stdout().print()
        print_rows(rows[:_LISTED_MAX], names)
    if len(rows) > _LISTED_MAX:
        stdout().print(f"{_LISTED_MAX} of {len(rows):,}: --json shows every one", style="dim")


def _print_findings(findings: list[Finding] | None) -> None:
    screen = stdout()
    if findings is not None:
        screen.print()
    if findings:
        print_rows([asdict(finding) for finding in findings], ["check", "offset", "message"])
    elif findings is not None:
        screen.print("every byte was checked: sound", style="green")
