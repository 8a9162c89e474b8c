"""`skipstone inspect`: what one sorted-block file holds, and where its bytes go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice

from rich.console import Console

from ..hfile_like import Finding, PathSource, SortedFileReader
from ..hfile_like.footer import FORMAT_VERSION, HEADER, Footer, open_footer
from .output import bytes_text, count_of, plain, print_json, records, stdout, table, working

_LISTED_MAX = 10
_KEY_CHARACTERS = 48


def inspect_file(path: str, verify: bool, prefix: str | None, limit: int, everything: bool, as_json: bool) -> bool:
    """Prints a file's summary, or with a prefix its entries. False where `verify` found something."""
    with SortedFileReader(path) as reader:
        if prefix is not None:
            _print_entries(reader, key_of(prefix), limit, as_json)
            return True
        source = PathSource(path)
        try:
            footer, _ = open_footer(source)
        finally:
            source.close()
        findings: list[Finding] | None = None
        if verify:
            with working("reading every byte"):
                findings = reader.verify()
        if as_json:
            print_json(_as_dict(reader, footer, findings))
        else:
            _print_summary(stdout(), path, reader, footer, None if everything else _LISTED_MAX)
            _print_findings(stdout(), findings)
    return not findings


def key_of(text: str) -> bytes:
    """A key as it is typed: a text, or bytes in hexadecimal after 0x."""
    try:
        return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    except ValueError:
        return text.encode()


def key_text(key: bytes) -> str:
    """A key as it can be read, and typed again: itself where it is printable, else 0x and its bytes."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and text and not text.startswith("0x") else f"0x{key.hex()}"


def _shortened(key: bytes) -> str:
    text = key_text(key)
    return text if len(text) <= _KEY_CHARACTERS else text[: _KEY_CHARACTERS - 1] + "…"


def _bytes_by_section(reader: SortedFileReader, footer: Footer) -> dict[str, int]:
    found = {
        "header": len(HEADER),
        "blocks": sum(block.length for block in reader.block_infos()),
    }
    # Sections of one kind are told apart after a slash (fine/0, fine/1, ...): there may be thousands.
    parts = [("strided", name, section.length_bytes) for name, section in footer.strided.items()]
    parts += [("meta", name, meta.stored) for name, meta in footer.metas.items()]
    for kind, name, size_bytes in parts:
        stem, slash, _ = name.partition("/")
        label = f"{kind} {stem}{slash and '/*'}"
        found[label] = found.get(label, 0) + size_bytes
    found["footer, padding"] = reader.size_bytes - sum(found.values())
    return found


def _as_dict(reader: SortedFileReader, footer: Footer, findings: list[Finding] | None) -> dict[str, object]:
    blocks = [
        {**asdict(b), "first_key": key_text(b.first_key), "last_key": key_text(b.last_key)} for b in reader.blocks()
    ]
    return {
        "path": reader.name,
        "format_version": FORMAT_VERSION,
        "size_bytes": reader.size_bytes,
        "entries": reader.num_entries,
        "tombstones": reader.num_deleted,
        "schema": {f.name: str(f.type) for f in reader.schema},
        "properties": reader.properties,
        "bytes": _bytes_by_section(reader, footer),
        "blocks": blocks,
        "groups": [asdict(group) for group in reader.groups().values()],
        "strided": [{**asdict(s), "length": s.length_bytes} for s in reader.strided_sections().values()],
        "metas": [
            {"name": name, "offset": m.offset, "stored": m.stored, "raw": m.plain} for name, m in footer.metas.items()
        ],
        **({} if findings is None else {"findings": [asdict(finding) for finding in findings]}),
    }


def _print_summary(screen: Console, path: str, reader: SortedFileReader, footer: Footer, most: int | None) -> None:
    held = f"{count_of(reader.num_entries, 'entry', 'entries')}, {count_of(reader.num_deleted, 'tombstone')} among them"
    screen.print(
        f"{path}: sorted-block file, version {FORMAT_VERSION}, {bytes_text(reader.size_bytes)}", soft_wrap=True
    )
    screen.print(held if reader.num_deleted else count_of(reader.num_entries, "entry", "entries"))
    screen.print("key → " + (", ".join(f"{f.name} {f.type}" for f in reader.schema) or "no values"))
    for name, value in reader.properties.items():
        screen.print(f"{name} = {value}")
    sizes = _bytes_by_section(reader, footer)
    rows = [[n, bytes_text(size), f"{100 * size / reader.size_bytes:.1f}%"] for n, size in sizes.items() if size]
    _print_part(screen, ["section", "size", "share"], rows, None, right=("size", "share"))
    numbers = ("offset", "size", "entries", "blocks", "rows", "row bytes")
    headings = ["block", "offset", "size", "entries", "first key", "last key"]
    rows = [
        [
            str(i),
            f"{b.offset:,}",
            bytes_text(b.length),
            f"{b.entries:,}",
            _shortened(b.first_key),
            _shortened(b.last_key),
        ]
        for i, b in enumerate(islice(reader.blocks(), most))
    ]
    _print_part(screen, headings, rows, reader.num_blocks, right=numbers)
    groups = reader.groups()
    rows = [
        [g.name, f"{g.offset:,}", bytes_text(g.length), f"{g.entries:,}", f"{g.block_count:,}"]
        for g in islice(groups.values(), most)
    ]
    _print_part(screen, ["group", "offset", "size", "entries", "blocks"], rows, len(groups), right=numbers)
    strided = reader.strided_sections()
    rows = [
        [s.name, f"{s.offset:,}", bytes_text(s.length_bytes), f"{s.rows:,}", f"{s.stride:,}"]
        for s in islice(strided.values(), most)
    ]
    headings = ["strided section", "offset", "size", "rows", "row bytes"]
    _print_part(screen, headings, rows, len(strided), right=numbers)


def _print_part(
    screen: Console, headings: list[str], rows: list[list[str]], total: int | None, right: Sequence[str]
) -> None:
    """A table of some of `total` things; nothing where there are none."""
    if not rows:
        return
    screen.print()
    screen.print(table(headings, rows, right=right))
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
    screen.print(table(["check", "at byte", "what is wrong"], rows, right=["at byte"]))


def _print_entries(reader: SortedFileReader, prefix: bytes, limit: int, as_json: bool) -> None:
    found: list[dict[str, object]] = []
    more = False
    for batch in reader.scan(prefix=prefix):
        keys = [key_text(key) for key in batch.column("key").to_pylist()]
        rows = records(batch.slice(0, limit + 1 - len(found)))
        found += [{**row, "key": key} for row, key in zip(rows, keys, strict=False)]
        if len(found) > limit:
            more = True
            break
    found = found[:limit]
    if as_json:
        print_json(found)
        return
    screen = stdout()
    if not found:
        screen.print("no such key")
        return
    names = ["key", *reader.schema.names]
    cells = [["-" if row[name] is None else str(plain(row[name])) for name in names] for row in found]
    screen.print(table(names, cells))
    if more:
        screen.print(f"the first {limit}: --limit shows more", style="dim")
