"""`skipstone inspect`: what one sorted-block file contains, and where its bytes go."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Annotated, NamedTuple

import numpy as np

from ..errors import CorruptionError, NotATableError
from ..hfile_like import Finding, PathSource, SortedFileReader
from ..hfile_like.footer import FORMAT_VERSION, HEADER
from .arguments import Argument, AsJson, CommandExit, Option, Status
from .output import bytes_text, count_of, plain, print_json, records, stdout, text_table, working

_LISTED_MAX = 10
_MAGIC = HEADER[:6]
_KEY_CHARACTERS = 48
_NUMBERS = ("stored", "share", "bytes per entry", "uncompressed", "offset", "size", "entries", "blocks", "rows")


def inspect(
    file: Annotated[str, Argument(metavar="FILE", help="A sorted-block file.")],
    verify: Annotated[bool, Option(help="Check every byte; status 3 if one is wrong.")] = False,
    keys: Annotated[
        str | None, Option(metavar="PREFIX", help="Entries whose keys begin so: a text, or 0x and hexadecimal.")
    ] = None,
    limit: Annotated[int, Option(metavar="N", minimum=1, help="How many entries --keys shows.")] = 20,
    everything: Annotated[bool, Option("--all", help="Every block, group and section, not the first 10.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what one sorted-block file contains: header, blocks, groups, sections, and where its bytes go."""
    with _reader(file) as reader:
        if keys is not None:
            _print_entries(reader, key_of(keys), limit, as_json)
            return
        findings: list[Finding] | None = None
        if verify:
            with working("reading every byte"):
                findings = reader.verify()
        sizes = _sizes(reader, findings)
        if as_json:
            print_json(_as_dict(reader, sizes, findings))
        else:
            _print_summary(reader, sizes, None if everything else _LISTED_MAX)
            _print_findings(findings)
    if findings:
        raise CommandExit(Status.FINDINGS)


def _reader(path: str) -> SortedFileReader:
    """Raise NotATableError if it is not a sorted-block file at all, CorruptionError if it is damaged."""
    try:
        return SortedFileReader(path)
    except CorruptionError:
        source = PathSource(path)
        begins = bytes(source.read_ranges([(0, len(_MAGIC))])[0])
        source.close()
        if begins != _MAGIC:
            raise NotATableError(f"{path}: is no sorted-block file: those begin with {_MAGIC.decode()}") from None
        raise


class SectionSize(NamedTuple):
    """The bytes of one section in all blocks: "tombstones", "keys", or a value column."""

    name: str
    stored_bytes: int
    uncompressed_bytes: int


def _sizes(reader: SortedFileReader, findings: list[Finding] | None) -> list[SectionSize]:
    """Return the bytes of each section; none if known damage prevents it."""
    names = ["tombstones", "keys", *reader.schema.names]
    totals = np.zeros((len(names), 2), dtype=np.int64)
    try:
        for block in reader.read_blocks(range(reader.num_blocks)):
            totals += block.section_sizes()
    except CorruptionError:
        if not findings:
            raise
        return []
    return [SectionSize(name, *sizes) for name, sizes in zip(names, totals.tolist(), strict=True)]


def key_of(text: str) -> bytes:
    """Return a key as it is typed: a text, or bytes in hexadecimal after 0x."""
    try:
        return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    except ValueError:
        return text.encode()


def key_text(key: bytes) -> str:
    """Return a key as `key_of` reads it: itself if it is printable, else 0x and its bytes."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and text and not text.startswith("0x") else f"0x{key.hex()}"


def _as_dict(reader: SortedFileReader, sizes: list[SectionSize], findings: list[Finding] | None) -> dict[str, object]:
    summary: dict[str, object] = {
        "path": reader.name,
        "format_version": FORMAT_VERSION,
        "size_bytes": reader.size_bytes,
        "entries": reader.num_entries,
        "tombstones": reader.num_deleted,
        "schema": {f.name: str(f.type) for f in reader.schema},
        "sections": [size._asdict() for size in sizes],
        "blocks": [
            {**b._asdict(), "first_key": key_text(b.first_key), "last_key": key_text(b.last_key)}
            for b in reader.blocks()
        ],
        "groups": [asdict(group) for group in reader.groups().values()],
        "row_tables": [{**asdict(s), "length": s.length_bytes} for s in reader.row_tables().values()],
        "metas": reader.metas(),
    }
    return summary if findings is None else {**summary, "findings": [asdict(finding) for finding in findings]}


def _print_summary(reader: SortedFileReader, sizes: list[SectionSize], most: int | None) -> None:
    screen, size = stdout(), bytes_text(reader.size_bytes)
    screen.print(f"{reader.name}: sorted-block file, version {FORMAT_VERSION}, {size}", soft_wrap=True)
    deleted = f", {count_of(reader.num_deleted, 'tombstone')} among them" if reader.num_deleted else ""
    blocks = count_of(reader.num_blocks, "block")
    screen.print(f"{count_of(reader.num_entries, 'entry', 'entries')}{deleted}, in {blocks}")
    screen.print("key → " + (", ".join(f"{f.name} {f.type}" for f in reader.schema) or "no values"))
    if reader.metas():
        screen.print("metas: " + ", ".join(reader.metas()), soft_wrap=True)
    for headings, rows, total in _parts(reader, sizes, most):
        if rows:
            screen.print()
            screen.print(text_table(headings, rows, right=_NUMBERS))
        if len(rows) < total:
            screen.print(f"{len(rows)} of {total:,}: --all shows every one", style="dim")


def _parts(
    reader: SortedFileReader, sizes: list[SectionSize], most: int | None
) -> Iterator[tuple[list[str], list[list[str]], int]]:
    """Yield (headings, the first rows, how many there are) of sections, blocks, groups and row tables."""
    shares = [
        [
            size.name,
            bytes_text(size.stored_bytes),
            f"{100 * size.stored_bytes / reader.size_bytes:.1f}%",
            f"{size.stored_bytes / reader.num_entries:.2f}",
            bytes_text(size.uncompressed_bytes),
        ]
        for size in sorted(sizes, key=lambda size: -size.stored_bytes)
        if size.uncompressed_bytes
    ]
    yield ["section", "stored", "share", "bytes per entry", "uncompressed"], shares, len(shares)
    count = reader.num_blocks
    chosen = None if most is None else range(min(most, count))
    blocks = []
    for i, b in enumerate(reader.blocks(chosen)):
        sizes_of = [f"{b.offset:,}", bytes_text(b.length), f"{b.entries:,}"]
        blocks.append([str(i), *sizes_of, _shortened(b.first_key), _shortened(b.last_key)])
    yield ["block", "offset", "size", "entries", "first key", "last key"], blocks, count
    groups = [
        [g.name, f"{g.offset:,}", bytes_text(g.length), f"{g.entries:,}", f"{g.block_count:,}"]
        for g in islice(reader.groups().values(), most)
    ]
    yield ["group", "offset", "size", "entries", "blocks"], groups, len(reader.groups())
    tables = [
        [s.name, f"{s.offset:,}", bytes_text(s.length_bytes), f"{s.rows:,}"]
        for s in islice(reader.row_tables().values(), most)
    ]
    yield ["row table", "offset", "size", "rows"], tables, len(reader.row_tables())


def _shortened(key: bytes) -> str:
    text = key_text(key)
    return text if len(text) <= _KEY_CHARACTERS else text[: _KEY_CHARACTERS - 1] + "…"


def _print_findings(findings: list[Finding] | None) -> None:
    screen = stdout()
    if findings is not None:
        screen.print()
    if findings:
        rows = [[f.check, "-" if f.offset is None else f"{f.offset:,}", f.message] for f in findings]
        screen.print(text_table(["check", "at byte", "what is wrong"], rows, right=["at byte"]))
    elif findings is not None:
        screen.print("every byte was checked: sound", style="green")


def _print_entries(reader: SortedFileReader, prefix: bytes, limit: int, as_json: bool) -> None:
    entries: list[dict[str, object]] = []
    for batch in reader.scan(prefix=prefix):
        keys = [key_text(key) for key in batch.column("key").to_pylist()]
        rows = records(batch.slice(0, limit + 1 - len(entries)))
        entries += [{**row, "key": key} for row, key in zip(rows, keys, strict=False)]
        if len(entries) > limit:
            break
    shown = entries[:limit]
    if as_json:
        print_json(shown)
        return
    screen = stdout()
    if not shown:
        screen.print("no such key")
        return
    names = ["key", *reader.schema.names]
    cells = [["-" if row[name] is None else str(plain(row[name])) for name in names] for row in shown]
    screen.print(text_table(names, cells))
    if len(entries) > limit:
        screen.print(f"the first {limit}: --limit shows more", style="dim")
