"""A second reader of sorted-block files and of versions, from FORMAT.md and LAYOUT.md alone: no code of the library.

It reads columns of signed integers, bool, text (as bytes) and binary.
"""

from __future__ import annotations

import json
import struct
import zlib
from itertools import accumulate, pairwise
from pathlib import Path

import pyarrow as pa
import zstandard

_WIDTHS = {pa.int8(): 1, pa.int16(): 2, pa.int32(): 4}
_FORMATS = {1: "b", 2: "h", 4: "i", 8: "q"}


def u(data: bytes, at: int, width: int) -> int:
    return int.from_bytes(data[at : at + width], "little")


def bound(data: bytes, offset: int) -> int:
    return zlib.crc32(data) ^ zlib.crc32(offset.to_bytes(8, "little"))


def plain(data: bytes, codec: int, size: int) -> bytes:
    raw = data if codec == 0 else zstandard.decompress(data)
    assert len(raw) == size
    return raw


def up(n: int) -> int:
    return (n + 7) // 8 * 8


def bits(data: bytes, count: int) -> list[bool]:
    return [bool(data[i // 8] >> (i % 8) & 1) for i in range(count)]


def items_of(raw: bytes, count: int) -> list[int]:
    size = len(raw) // count
    low = {3: 2, 5: 4, 6: 4}.get(size, size)
    above = raw[low * count :]
    parts = [(u(raw, low * i, low), u(above, (size - low) * i, size - low)) for i in range(count)]
    return [small + (large << 8 * low) for small, large in parts]


def keys_of(encoding: int, raw: bytes, count: int) -> list[bytes]:
    if encoding == 1:
        width, shared = u(raw, 0, 4), u(raw, 4, 4)
        prefix, rest = raw[8 : 8 + shared], raw[8 + shared :]
        return [prefix + bytes(rest[j * count + i] for j in range(width - shared)) for i in range(count)]
    if encoding == 3:
        width, base, step = u(raw, 0, 4), u(raw, 8, 8), u(raw, 16, 8)
        last = min(width, 8)
        prefix, items = raw[24 : 24 + width - last], raw[up(24 + width - last) :]
        numbers = [base + step * i + item for i, item in enumerate(items_of(items, count))]
        return [prefix + (number % 2 ** (8 * last)).to_bytes(last, "big") for number in numbers]
    shared, a, b = u(raw, 0, 4), raw[4], raw[5]
    at = 8 + shared
    bundles = -(-count // 16)
    heads = [u(raw, at + a * i, a) for i in range(bundles)]
    at += a * bundles
    suffixes = [u(raw, at + b * i, b) for i in range(count)]
    at += b * count
    cuts = list(accumulate([*heads, *suffixes], initial=at))
    pieces = [raw[x:y] for x, y in pairwise(cuts)]
    assert cuts[-1] == len(raw)
    return [raw[8 : 8 + shared] + pieces[i // 16] + pieces[bundles + i] for i in range(count)]


def names_of(raw: bytes, count: int) -> list[bytes]:
    parts, literal_at = u(raw, 0, 4), 8 + 24 * u(raw, 0, 4)
    records = [struct.unpack_from("<BBHIQQ", raw, 8 + 24 * p) for p in range(parts)]
    at = up(literal_at + u(raw, 4, 4))
    pieces: list[list[bytes]] = [[]] * parts
    for p, (kind, width, reserved, size, base, step) in enumerate(records):
        assert reserved == 0
        if not kind:
            continue
        field = raw[at : at + count * (width if kind < 3 else size)]
        at += up(len(field))
        if kind < 3:
            numbers = [(base + step * i + item) % 2**64 for i, item in enumerate(items_of(field, count))]
            pieces[p] = [str(number).rjust(size, "0").encode() for number in numbers]
            continue
        text = [field[size * i : size * (i + 1)].hex().encode() for i in range(count)]
        pieces[p] = text if kind == 3 else [b"-".join((h[:8], h[8:12], h[12:16], h[16:20], h[20:])) for h in text]
    assert at == len(raw)
    for p, (kind, _, _, size, _, _) in enumerate(records):
        if kind == 0:
            pieces[p] = [raw[literal_at : literal_at + size]] * count
            literal_at += size
    return [b"".join(each) for each in zip(*pieces, strict=True)]


def values_of(encoding: int, flags: int, raw: bytes, count: int, width: int = 8) -> list:
    if encoding == 0:
        return [None] * count
    valid, at = [True] * count, 0
    if flags & 1:
        valid, at = bits(raw, count), up((count + 7) // 8)
    if encoding == 1:
        found = struct.unpack_from(f"<{count}{_FORMATS[width]}", raw, at)
    elif encoding == 2:
        found = bits(raw[at:], count)
    elif encoding == 5:
        base, step = u(raw, at, 8), u(raw, at + 8, 8)
        sums = [base + step * i + item for i, item in enumerate(items_of(raw[at + 16 :], count))]
        found = [(total + 2**63) % 2**64 - 2**63 for total in sums]
    elif encoding == 6:
        found = [bool(raw[at])] * count
    elif encoding == 8:
        found = names_of(raw[at:], count)
    elif encoding == 7:
        values = u(raw, at, 4)
        ends = list(accumulate([u(raw, at + 4 + 4 * i, 4) for i in range(values)], initial=at + 4 + 4 * values))
        table = [raw[x:y] for x, y in pairwise(ends)]
        found = [table[code] for code in raw[ends[-1] :]] if values > 1 else table * count
    else:
        ends = struct.unpack_from(f"<{count + 1}I", raw, at)
        base = at + up(4 * (count + 1))
        found = [raw[base + x : base + y] for x, y in pairwise(ends)]
    return [v if ok else None for v, ok in zip(found, valid, strict=True)]


def blocks_of(index: bytes) -> list[tuple[int, int]]:
    """(offset, length) of each block."""
    blocks = u(index, 0, 8)
    return [(u(index, 8 + 8 * i, 8), u(index, 8 + 8 * blocks + 4 * i, 4)) for i in range(blocks)]


def second_reader(data: bytes) -> list[tuple]:
    """Each entry of a file: key, whether it is a tombstone, values."""
    return read_file(data)[1]


def read_file(data: bytes) -> tuple[list[str], list[tuple]]:
    """The names of the columns, and each entry of a file."""
    at = len(data) - 48
    offset, stored, raw_size = (u(data, at + i, 8) for i in (0, 8, 16))
    assert data[at + 40 :] == b"SKSBLK\r\n" and data[:8] == b"SKSBLK\1\0"
    assert u(data, at + 32, 4) == bound(data[at : at + 32] + data[at + 36 :], at)
    assert u(data, at + 24, 4) == bound(data[offset : offset + stored], offset)
    footer = plain(data[offset : offset + stored], u(data, at + 28, 4), raw_size)
    sections, start = {}, 8 + 16 * u(footer, 0, 8)
    for i in range(u(footer, 0, 8)):
        length = u(footer, 8 + 16 * i + 8, 8)
        sections[u(footer, 8 + 16 * i, 4)] = footer[start : start + length]
        start += length
    schema = pa.ipc.read_schema(pa.py_buffer(sections[1]))
    rows = []
    for place, length in blocks_of(sections[2]):
        block = data[place : place + length]
        count, sections_of_block = u(block, 8, 4), u(block, 12, 2)
        at = 16 + 16 * sections_of_block
        assert u(block, 0, 4) == bound(block[4:at], place)
        found = []
        for s in range(sections_of_block):
            codec, encoding, flags, size, raw_size, checksum = struct.unpack_from("<BBHIII", block, 16 + 16 * s)
            assert checksum == bound(block[at : at + up(size)], place + at)
            found.append((encoding, flags, plain(block[at : at + size], codec, raw_size)))
            at += up(size)
        deleted = bits(found[0][2], count) if found[0][0] else [False] * count
        columns = [
            values_of(*section, count, _WIDTHS.get(f.type, 8)) for section, f in zip(found[2:], schema, strict=True)
        ]
        rows += zip(keys_of(found[1][0], found[1][2], count), deleted, *columns, strict=True)
    return schema.names, rows


# -- versions, from LAYOUT.md -----------------------------------------------------------------------------------------


def newest_instant(index: Path) -> dict:
    """The document of the newest version."""
    path = max((index / "timeline").glob("*/*.json"), key=lambda path: int(path.stem))
    document, _, seal = path.read_bytes().partition(b"\n")
    assert seal == b"crc32 %08x\n" % zlib.crc32(document)
    instant = json.loads(document)
    assert instant["format"] == 1 and set(instant.get("requires", [])) <= {"moved entries"}
    return instant


def live_files(index: Path, instant: dict) -> dict[str, int]:
    """The live files of a version, and how many rows each has: later runs of the manifest win."""
    entries: dict[bytes, dict | None] = {}
    for run in instant["manifest"]:
        names, rows = read_file((index / run["path"]).read_bytes())
        assert len(rows) == run["entries"] and rows[0][0].hex() == run["first_key"]
        for key, is_deleted, *values in rows:
            entries[key] = None if is_deleted else dict(zip(names, values, strict=True))
    files = [values for key, values in entries.items() if key[0] == 2 and values is not None]
    return {values["path"].decode(): values["row_count"] for values in files}
