"""The bytes of a sorted-block file as a text that says what each is: offset, bytes, meaning. From FORMAT.md alone."""

from __future__ import annotations

from collections.abc import Iterator

from sorted_file_layout import (
    FOOTER_NAMES,
    HEAD_BYTES,
    INDEX,
    SECTION_BYTES,
    SUMMARIES,
    Layout,
    columns,
    strings,
    u,
    up,
)

CODECS = {0: "raw", 1: "zstandard"}
TOMBSTONES = {0: "none", 1: "bitmap"}
KEYS = {1: "fixed width", 2: "bundle prefix", 3: "numbers"}
VALUES = {
    0: "all null", 1: "fixed width", 2: "bits", 3: "offsets and bytes",
    5: "frame of reference", 6: "constant bool", 7: "dictionary", 8: "template",
}  # fmt: skip
PARTS = {0: "literal", 1: "padded number", 2: "plain number", 3: "hexadecimal", 4: "uuid"}
_LINE_BYTES = 16

Items = Iterator[tuple[int, str]]  # (how many bytes, what they are), without gaps


def annotated(data: bytes) -> str:
    """The text: a line for each piece of up to 16 bytes, of which the first says what it is."""
    lines, at = [], 0
    for size, what in _whole(data):
        for low in range(at, at + size, _LINE_BYTES):
            shown = data[low : min(low + _LINE_BYTES, at + size)].hex(" ")
            lines.append(f"{low:05x}  {shown:<47}  {what if low == at else ''}".rstrip())
        if not size:
            lines.append(f"{at:05x}  {'':<47}  {what}")
        at += size
    assert at == len(data), f"{at} of {len(data)} bytes are told"
    return "\n".join(lines) + "\n"


def _whole(data: bytes) -> Items:
    layout = Layout(data)
    for region in layout.regions:
        part, n = data[region.start : region.stop], region.number
        if region.kind == "header":
            yield 6, '"SKSBLK"'
            yield 2, f"version {u(part, 6, 2)}"
        elif region.kind == "block":
            yield from _block(part, n)
        elif region.kind == "row":
            yield len(part) - 4, f"row {n} of a row table"
            yield 4, "its checksum"
        elif region.kind == "meta":
            name, _, _, raw, _, codec = layout.metas[n]
            yield len(part), f"meta {name.decode()!r}: {CODECS[codec]}, {raw} bytes"
        elif region.kind == "footer":
            yield from _footer(layout, part)
        elif region.kind == "trailer":
            yield from _trailer(part)
        else:
            yield len(part), "padding"


def _block(block: bytes, number: int) -> Items:
    count, sections = u(block, 8, 4), u(block, 12, 2)
    yield 4, f"block {number}: checksum of the rest of its head and directory"
    yield 4, f"  {u(block, 4, 4)} bytes"
    yield 4, f"  {count} entries"
    yield 4, f"  {sections} sections; reserved"
    names = ["tombstones", "keys", *(f"column {i}" for i in range(sections - 2))]
    entries = [block[HEAD_BYTES + SECTION_BYTES * s :][:SECTION_BYTES] for s in range(sections)]
    for s, entry in enumerate(entries):
        encoding = (TOMBSTONES, KEYS)[s].get(entry[1]) if s < 2 else VALUES.get(entry[1])
        flags = ", with validity" if u(entry, 2, 2) & 1 else ""
        what = f"{CODECS[entry[0]]}; encoding {entry[1]}, {encoding}{flags}"
        yield 4, f"  {names[s]}: {what}"
        yield 12, f"    {u(entry, 4, 4)} bytes stored, {u(entry, 8, 4)} plain; checksum"
    at = HEAD_BYTES + SECTION_BYTES * sections
    for s, entry in enumerate(entries):
        stored = u(entry, 4, 4)
        raw = block[at : at + stored]
        if entry[0]:
            yield stored, f"  {names[s]}: {CODECS[entry[0]]}"
        elif s:
            known = _keys(entry[1], raw, count) if s == 1 else _values(entry[1], u(entry, 2, 2), raw, count)
            yield from _all_of(raw, known, f"  {names[s]}: ")
        elif stored:
            yield stored, "  tombstones"
        if up(stored) > stored:
            yield up(stored) - stored, "  padding"
        at += up(stored)


def _all_of(raw: bytes, known: Items, before: str) -> Items:
    """What is known of a section, and what is left of it."""
    at = 0
    for size, what in known:
        if size:
            yield size, before + what
            before = " " * len(before)
        at += size
    assert at <= len(raw), f"{at} bytes are told of {len(raw)}"
    if at < len(raw):
        yield len(raw) - at, before + "the bytes, or items"


def _keys(encoding: int, raw: bytes, count: int) -> Items:
    if encoding == 1:
        width, shared = u(raw, 0, 4), u(raw, 4, 4)
        yield 8, f"width {width}, of which {shared} bytes are shared"
        yield shared, "the shared prefix"
        for place in range(shared, width):
            yield count, f"byte {place} of each key"
    elif encoding == 2:
        shared, a, b = u(raw, 0, 4), raw[4], raw[5]
        bundles = -(-count // 16)
        heads = [u(raw, 8 + shared + a * i, a) for i in range(bundles)]
        yield 8, f"{shared} bytes are shared; lengths of {a} and {b} bytes; reserved"
        yield shared, "the shared prefix"
        yield a * bundles, "lengths of the bundles' prefixes"
        yield b * count, "lengths of the suffixes"
        yield sum(heads), "the bundles' prefixes"
    elif encoding == 3:
        width = u(raw, 0, 4)
        yield 8, f"width {width}; reserved"
        yield 16, f"base {u(raw, 8, 8)}, step {u(raw, 16, 8)}"
        yield width - min(width, 8), "the prefix"
        yield -(24 + width - min(width, 8)) % 8, "padding"


def _values(encoding: int, flags: int, raw: bytes, count: int) -> Items:
    at = 0
    if flags & 1:
        bitmap = (count + 7) // 8
        yield bitmap, "validity"
        yield up(bitmap) - bitmap, "padding"
        at = up(bitmap)
    if encoding == 3:
        size = 4 * (count + 1)
        yield size, "offsets"
        yield up(size) - size, "padding"
    elif encoding == 5:
        yield 16, f"base {u(raw, at, 8)}, step {u(raw, at + 8, 8)}"
    elif encoding == 7:
        values, end = strings(raw, at)
        yield 4 + 4 * len(values), f"{len(values)} values: their lengths"
        yield end - at - 4 - 4 * len(values), "the values"
    elif encoding == 8:
        yield from _template(raw[at:])


def _template(raw: bytes) -> Items:
    parts, literals = u(raw, 0, 4), u(raw, 4, 4)
    yield 8, f"a template of {parts} parts, {literals} bytes of literals"
    for p in range(parts):
        record = raw[8 + 24 * p : 32 + 24 * p]
        kind, width, size = record[0], record[1], u(record, 4, 4)
        name = PARTS.get(kind, f"kind {kind}")
        yield 24, f"part {p}: {name}, items of {width} bytes, size {size}; base; step"
    end = 8 + 24 * parts + literals
    yield literals, "the literals"
    yield up(end) - end, "padding"


def _footer(layout: Layout, stored: bytes) -> Items:
    if layout.footer_codec:
        yield len(stored), f"footer: {CODECS[layout.footer_codec]}, {len(layout.footer)} bytes"
        return
    footer = layout.footer
    count = u(footer, 0, 8)
    yield 8, f"footer: {count} sections"
    kinds = [u(footer, 8 + 16 * i, 4) for i in range(count)]
    for i, kind in enumerate(kinds):
        yield 16, f"  section {kind}, {FOOTER_NAMES[kind - 1]}: reserved; {u(footer, 16 + 16 * i, 8)} bytes"
    for kind in kinds:
        _, body = layout.sections[kind]
        if kind == INDEX:
            yield from _index(layout, body)
        elif kind == SUMMARIES:
            names, at = strings(body)
            yield at, f"  summaries of {', '.join(name.decode() for name in names)}"
            for i, name in enumerate(names):
                yield 8, f"    {name.decode()}: {u(body, at + 8 * i, 8)} bytes"
            for i, name in enumerate(names):
                yield u(body, at + 8 * i, 8), f"    {name.decode()}"
        elif kind in (3, 4, 5):
            yield len(body), f"  {FOOTER_NAMES[kind - 1]}: {', '.join(n.decode() for n, *_ in columns(body, ''))}"
        else:
            yield len(body), f"  {FOOTER_NAMES[kind - 1]}"


def _index(layout: Layout, body: bytes) -> Items:
    yield 8, f"  index: {layout.block_count} blocks"
    rows = layout.block_count
    yield 8 * rows, "    offsets of the blocks"
    for name in ("lengths", "entries", "tombstones", "plain bytes"):
        yield 4 * rows, f"    their {name}"
    yield 8 * (2 * rows + 1), "    ends of the keys"
    yield len(body) - 8 - 24 * rows - 8 * (2 * rows + 1), "    first and last keys"


def _trailer(trailer: bytes) -> Items:
    yield 8, f"trailer: the footer is at {u(trailer, 0, 8):#x}"
    yield 8, f"  {u(trailer, 8, 8)} bytes stored"
    yield 8, f"  {u(trailer, 16, 8)} plain"
    yield 4, "  its checksum"
    yield 4, f"  its codec: {CODECS[u(trailer, 28, 4)]}"
    yield 4, "  the trailer's checksum"
    yield 2, f"  flags {u(trailer, 36, 2):#x}"
    yield 2, f"  version {u(trailer, 38, 2)}"
    yield 8, '  "SKSBLK\\r\\n"'
