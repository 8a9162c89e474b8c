"""`skipstone inspect`: what one sorted-block file holds, and where its bytes go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from typing import Annotated

from rich.console import Console

from ..errors import CorruptionError, NotATableError
from ..hfile_like import Finding, PathSource, SortedFileReader
from ..hfile_like.footer import FORMAT_VERSION, HEADER
from ..hfile_like.verify import SectionSize, section_sizes
from .arguments import Argument, AsJson, CommandExit, Option, Status
from .output import bytes_text, count_of, plain, print_json, records, stdout, text_table, working

_LISTED_MAX = 10
_MAGIC = HEADER[:6]
_KEY_CHARACTERS = 48
_NUMBERS = ("offset", "size", "entries", "blocks", "rows", "row bytes")


def inspect(
    file: Annotated[str, Argument(metavar="FILE", help="A sorted-block file.")],
    verify: Annotated[bool, Option("--verify", help="Check every byte; status 3 where one is wrong.")] = False,
    keys: Annotated[
        str | None, Option(metavar="PREFIX", help="Entries whose keys begin so: a text, or 0x and hexadecimal.")
    ] = None,
    limit: Annotated[int, Option(minimum=1, help="How many entries --keys shows.")] = 20,
    everything: Annotated[bool, Option("--all", help="Every block, group and section, not the first 10.")] = False,
    as_json: AsJson = False,
) -> None:
    """What one sorted-block file holds: header, blocks, groups, sections, and where its bytes go."""
    if not inspect_file(file, verify, keys, limit, everything, as_json):
        raise CommandExit(Status.FINDINGS)


def inspect_file(path: str, verify: bool, prefix: str | None, limit: int, everything: bool, as_json: bool) -> bool:
    """Prints a file's summary, or with a prefix its entries. False where `verify` finds something."""
    with _reader(path) as reader:
        if prefix is not None:
            _print_entries(reader, key_of(prefix), limit, as_json)
            return True
        findings: list[Finding] | None = None
        if verify:
            with working("reading every byte"):
                findings = reader.verify()
        sizes = _sizes(reader, findings)
        if as_json:
            print_json(_as_dict(reader, sizes, findings))
        else:
            _print_summary(stdout(), reader, sizes, None if everything else _LISTED_MAX)
            _print_findings(stdout(), findings)
    return not findings


def _reader(path: str) -> SortedFileReader:
    """Raises NotATableError for what is no such file at all, CorruptionError for one that is damaged."""
    try:
        return SortedFileReader(path)
    except CorruptionError:
        source = PathSource(path)
        begins = bytes(source.read_ranges([(0, len(_MAGIC))])[0])
        source.close()
        if begins != _MAGIC:
            raise NotATableError(f"{path}: is no sorted-block file: those begin with {_MAGIC.decode()}") from None
        raise


def _sizes(reader: SortedFileReader, findings: list[Finding] | None) -> list[SectionSize]:
    """The bytes of each section; none if known damage prevents it."""
    try:
        return section_sizes(reader)
    except CorruptionError:
        if not findings:
            raise
        return []


def key_of(text: str) -> bytes:
    """A key as it is typed: a text, or bytes in hexadecimal after 0x."""
    try:
        return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    except ValueError:
        return text.encode()


def key_text(key: bytes) -> str:
    """A key in the form that `key_of` takes: itself where it is printable, else 0x and its bytes."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and text and not text.startswith("0x") else f"0x{key.hex()}"


def _shortened(key: bytes) -> str:
    text = key_text(key)
    return text if len(text) <= _KEY_CHARACTERS else text[: _KEY_CHARACTERS - 1] + "…"


def _as_dict(reader: SortedFileReader, sizes: list[SectionSize], findings: list[Finding] | None) -> dict[str, object]:
    summary: dict[str, object] = {
        "path": reader.name,
        "format_version": FORMAT_VERSION,
        "size_bytes": reader.size_bytes,
        "entries": reader.num_entries,
        "tombstones": reader.num_deleted,
        "schema": {f.name: str(f.type) for f in reader.schema},
    }
    summary["sections"] = [asdict(size) for size in sizes]
    summary["blocks"] = [
        {**b._asdict(), "first_key": key_text(b.first_key), "last_key": key_text(b.last_key)} for b in reader.blocks()
    ]
    summary["groups"] = [asdict(group) for group in reader.groups().values()]
    summary["strided"] = [{**asdict(s), "length": s.length_bytes} for s in reader.strided_sections().values()]
    summary["metas"] = reader.metas()
    if findings is not None:
        summary["findings"] = [asdict(finding) for finding in findings]
    return summary


def _print_summary(screen: Console, reader: SortedFileReader, sizes: list[SectionSize], most: int | None) -> None:
    size = bytes_text(reader.size_bytes)
    screen.print(f"{reader.name}: sorted-block file, version {FORMAT_VERSION}, {size}", soft_wrap=True)
    deleted = f", {count_of(reader.num_deleted, 'tombstone')} among them" if reader.num_deleted else ""
    blocks = count_of(reader.num_blocks, "block")
    screen.print(f"{count_of(reader.num_entries, 'entry', 'entries')}{deleted}, in {blocks}")
    screen.print("key → " + (", ".join(f"{f.name} {f.type}" for f in reader.schema) or "no values"))
    if reader.metas():
        screen.print("metas: " + ", ".join(reader.metas()), soft_wrap=True)
    _print_sizes(screen, reader, sizes)
    _print_blocks(screen, reader, most)
    _print_groups(screen, reader, most)


def _print_sizes(screen: Console, reader: SortedFileReader, sizes: list[SectionSize]) -> None:
    rows = [
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
    right = ("stored", "share", "bytes per entry", "uncompressed")
    _print_part(screen, ["section", *right], rows, None, right)


def _print_blocks(screen: Console, reader: SortedFileReader, most: int | None) -> None:
    rows = [
        [
            str(i),
            f"{b.offset:,}",
            bytes_text(b.length),
            f"{b.entries:,}",
            _shortened(b.first_key),
            _shortened(b.last_key),
        ]
        for i, b in enumerate(reader.blocks(None if most is None else range(min(most, reader.num_blocks))))
    ]
    headings = ["block", "offset", "size", "entries", "first key", "last key"]
    _print_part(screen, headings, rows, reader.num_blocks, right=_NUMBERS)


def _print_groups(screen: Console, reader: SortedFileReader, most: int | None) -> None:
    groups = reader.groups()
    rows = [
        [g.name, f"{g.offset:,}", bytes_text(g.length), f"{g.entries:,}", f"{g.block_count:,}"]
        for g in islice(groups.values(), most)
    ]
    _print_part(screen, ["group", "offset", "size", "entries", "blocks"], rows, len(groups), right=_NUMBERS)
    strided = reader.strided_sections()
    rows = [
        [s.name, f"{s.offset:,}", bytes_text(s.length_bytes), f"{s.rows:,}", f"{s.stride:,}"]
        for s in islice(strided.values(), most)
    ]
    headings = ["strided section", "offset", "size", "rows", "row bytes"]
    _print_part(screen, headings, rows, len(strided), right=_NUMBERS)


def _print_part(
    screen: Console, headings: list[str], rows: list[list[str]], total: int | None, right: Sequence[str]
) -> None:
    """A table of the first of `total` things; nothing where there are none."""
    if not rows:
        return
    screen.print()
    screen.print(text_table(headings, rows, right=right))
    if total is not None and len(rows) < total:
        screen.print(f"{len(rows)} of {total:,}: --all shows every one", style="dim")


def _print_findings(screen: Console, findings: list[Finding] | None) -> None:
    if findings is None:
        return
    screen.print()
    if not findings:
        screen.print("every byte was checked: sound", style="green")
        return
    rows = [[f.check, "-" if f.offset is None else f"{f.offset:,}", f.message] for f in findings]
    screen.print(text_table(["check", "at byte", "what is wrong"], rows, right=["at byte"]))


def _print_entries(reader: SortedFileReader, prefix: bytes, limit: int, as_json: bool) -> None:
    entries: list[dict[str, object]] = []
    more = False
    for batch in reader.scan(prefix=prefix):
        keys = [key_text(key) for key in batch.column("key").to_pylist()]
        rows = records(batch.slice(0, limit + 1 - len(entries)))
        entries += [{**row, "key": key} for row, key in zip(rows, keys, strict=False)]
        if len(entries) > limit:
            more = True
            break
    entries = entries[:limit]
    if as_json:
        print_json(entries)
        return
    screen = stdout()
    if not entries:
        screen.print("no such key")
        return
    names = ["key", *reader.schema.names]
    cells = [["-" if row[name] is None else str(plain(row[name])) for name in names] for row in entries]
    screen.print(text_table(names, cells))
    if more:
        screen.print(f"the first {limit}: --limit shows more", style="dim")
