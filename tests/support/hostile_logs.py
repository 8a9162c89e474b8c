"""Delta and Iceberg tables of which one file of the log, or a deletion vector, is damaged or crafted.

make(folder, kind)      a table of 3 commits, partitioned, with rows deleted by position; Delta with a checkpoint too
harm(folder, kind, rng) changes one thing there, and says what
"""

from __future__ import annotations

import io
import json
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import hostile_footers
import log_lakes
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string()), ("p", pa.string())])
_ABSURD: list[Any] = [
    None,
    -1,
    0,
    1,
    1 << 31,
    (1 << 63) - 1,
    -(1 << 63),
    10**30,
    1e308,
    0.5,
    True,
    "",
    "x",
    "../../../../etc/passwd",
    "\0",
    "é" * 70_000,
    [],
    {},
    [None],
    {"x": {"y": []}},
]


def rows(first: int) -> pa.Table:
    numbers = range(first, first + 8)
    return pa.table([list(numbers), [f"s{i}" for i in numbers], ["xy"[i % 2] for i in numbers]], schema=SCHEMA)


# -- whole tables ------------------------------------------------------------------------------------------------------


def make(folder: Path, kind: str) -> Path:
    """Makes the table and gives where it lies."""
    return _make_delta(folder) if kind == "delta" else _make_iceberg(folder)


def _make_delta(folder: Path) -> Path:
    from deltalake import DeltaTable, write_deltalake

    lake = folder / "lake" / "t"
    lake.parent.mkdir(parents=True)
    options = {"configuration": {"delta.enableDeletionVectors": "true"}}
    write_deltalake(lake, rows(0), partition_by=["p"], **options)
    write_deltalake(lake, rows(8), mode="append")
    first, second, *_ = log_lakes.paths_of(lake)
    log_lakes.delete_rows(lake, first, [1])
    DeltaTable(lake).create_checkpoint()
    write_deltalake(lake, rows(16), mode="append")
    log_lakes.delete_rows(lake, second, [0, 2])
    _vector_in_file(lake, log_lakes.paths_of(lake)[-1], [3])
    return lake


def _vector_in_file(lake: Path, path: str, deleted: list[int]) -> None:
    """As `log_lakes.delete_rows`, with the vector in a file beside the data: its version, size, bytes and checksum."""
    add = log_lakes.add_of(lake, path)
    inline = log_lakes.deletion_vector(deleted)
    data = log_lakes.bitmap_array(deleted)
    file = b"\1" + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    (lake / "vector.bin").write_bytes(file)
    vector = {**inline, "storageType": "p", "pathOrInlineDv": f"file://{lake}/vector.bin", "offset": 1}
    remove = {name: add[name] for name in ("path", "partitionValues", "size")}
    remove |= {"dataChange": True, "deletionTimestamp": 1, "extendedFileMetadata": True}
    log_lakes.commit(lake, [{"remove": remove}, {"add": {**add, "deletionVector": vector}}])


def _make_iceberg(folder: Path) -> Path:
    their = log_lakes.catalog(folder).create_table("lake.t", SCHEMA)
    with their.update_spec() as update:
        update.add_identity("p")
    for first in (0, 8, 16):
        their.append(rows(first))
    lake = folder / "lake" / "t"
    data = next(iter(their.scan().plan_files())).file.file_path
    log_lakes.delete_positions(lake, data, [1])
    return lake


def files_of(lake: Path, kind: str) -> list[Path]:
    """What may be harmed."""
    if kind == "delta":
        found = sorted(p for p in (lake / "_delta_log").rglob("*") if p.is_file() and not p.name.startswith("_commit"))
        return [*found, lake / "vector.bin"]
    metadata = log_lakes.newest_metadata(lake)
    return [metadata, metadata, *sorted((lake / "metadata").glob("*.avro")), *(lake / "data").glob("deletes-*")]


# -- harm --------------------------------------------------------------------------------------------------------------


def harm(lake: Path, kind: str, rng: random.Random) -> str:
    """Harms one file of the log; the file's name and what was done to it."""
    path = rng.choice(files_of(lake, kind))
    if rng.random() < 0.2:
        told = _not_a_file(path, rng)
    elif kind == "delta" and path.suffix == ".json" and rng.random() < 0.4:
        told = _harm_vector(lake, path, rng)
    elif path.suffix == ".json" or path.name == "_last_checkpoint":
        told = _harm_json(path, rng)
    elif path.suffix == ".avro":
        told = _harm_avro(path, rng)
    elif path.suffix == ".parquet":
        data, told = hostile_footers.harmed(path.read_bytes(), rng.getrandbits(30))
        if rng.random() < 0.4:
            data, told = _other_cells(path, rng)
        path.write_bytes(data)
    else:
        told = _harm_bytes(path, rng)
    return f"{path.name}: {told}"


def _not_a_file(path: Path, rng: random.Random) -> str:
    what = rng.choice(["folder", "loop", "gone", "empty", "cut", "noise"])
    if what in ("loop", "folder") and path.name.endswith(".metadata.json"):
        what = "gone"  # neither is a file, and the one before it is the newest
    data = path.read_bytes()
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "loop":
        path.symlink_to(path)
    elif what != "gone":
        noise = bytes(rng.randrange(256) for _ in range(300))
        path.write_bytes({"empty": b"", "cut": data[: rng.randrange(len(data))], "noise": noise}[what])
    return what


def _harm_bytes(path: Path, rng: random.Random) -> str:
    data, told = bytearray(path.read_bytes()), []
    for _ in range(rng.choice([1, 1, 2, 8])):
        offset = rng.randrange(len(data))
        data[offset] = rng.choice([0, 255, data[offset] ^ (1 << rng.randrange(8)), rng.randrange(256)])
        told.append(f"{offset}={data[offset]}")
    path.write_bytes(data)
    return f"bytes {told}"


def _places(value: Any, path: tuple = ()) -> list[tuple]:
    """The way to every value within a value of JSON."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [place for key, inner in items for place in _places(inner, (*path, key))]


def _harm_value(whole: Any, rng: random.Random) -> tuple[str, str]:
    """(the text of a value of JSON in which one thing is another, what)."""
    place = rng.choice(_places(whole))
    holder = whole
    for key in place[:-1]:
        holder = holder[key]
    old, last = holder[place[-1]], place[-1]
    what = rng.choice(["absurd", "absurd", "absurd", "gone", "more", "text"])
    if what == "gone":
        del holder[last]
    elif what == "more" and isinstance(old, int) and not isinstance(old, bool):
        holder[last] = old + rng.choice([1, -1, 1000, 1 << 40])
    elif what == "text" and isinstance(old, str):
        holder[last] = rng.choice([old + "x", old[:-1], old.upper(), old * 1000, old[::-1]])
    elif isinstance(old, list) and old and rng.random() < 0.5:
        holder[last] = old + old
    else:
        holder[last] = rng.choice(_ABSURD)
    said = repr(holder[last])[:60] if what != "gone" else ""
    return json.dumps(whole), f"{'.'.join(map(str, place))}: {what} {said}"


def _harm_json(path: Path, rng: random.Random) -> str:
    if rng.random() < 0.15:
        return _harm_bytes(path, rng)
    if path.suffix != ".json" or path.parent.name != "_delta_log":
        text, told = _harm_value(json.loads(path.read_text()), rng)
        path.write_text(text)
        return told
    lines = path.read_text().splitlines()
    number = rng.randrange(len(lines))
    what = rng.choice(["value"] * 6 + ["stats", "stats", "twice", "gone"])
    if what == "value":
        lines[number], told = _harm_value(json.loads(lines[number]), rng)
    elif what == "stats":
        told = "no statistics"
        for at, line in enumerate(lines):
            action = json.loads(line)
            if action.get("add", {}).get("stats"):
                text, told = _harm_value(json.loads(action["add"]["stats"]), rng)
                action["add"]["stats"] = text
                lines[at] = json.dumps(action)
    else:
        lines[number : number + 1] = [lines[number]] * (2 if what == "twice" else 0)
        told = f"line {number} {what}"
    path.write_text("\n".join(lines))
    return told


def _harm_vector(lake: Path, path: Path, rng: random.Random) -> str:
    """A descriptor of a deletion vector that lies."""
    lines = path.read_text().splitlines()
    for at, line in enumerate(lines):
        action = json.loads(line)
        vector = action.get("add", {}).get("deletionVector")
        if not vector:
            continue
        what = rng.choice(["cardinality", "sizeInBytes", "offset", "storageType", "pathOrInlineDv", "bits"])
        if what in ("cardinality", "sizeInBytes", "offset"):
            vector[what] = rng.choice([-1, 0, 1, 2, 7, 1 << 20, (1 << 31) - 1, 1 << 31, 1 << 40, (1 << 63) - 1, 10**30])
        elif what == "storageType":
            vector[what] = rng.choice(["i", "p", "u", "x", ""])
        elif what == "pathOrInlineDv":
            text = vector[what]
            vector[what] = rng.choice(["", "x", text[:-5], text + "00000", text[::-1], "~" * 20])
        else:
            vector["storageType"], vector["pathOrInlineDv"] = "i", log_lakes.inline(_lying_bitmap(rng))
            vector["sizeInBytes"] = len(_lying_bitmap(rng))
            vector.pop("offset", None)
        lines[at] = json.dumps(action)
        path.write_text("\n".join(lines))
        return f"vector {what}: {str(vector.get(what))[:40]}"
    return _harm_json(path, rng)


def _lying_bitmap(rng: random.Random) -> bytes:
    """A bitmap array whose counts are not those of what follows, or whose rows are beyond the file's."""
    kind = rng.randrange(5)
    bitmaps, containers, rows_said = 1, 1, 1
    if kind == 0:
        bitmaps = rng.choice([0, 2, 1 << 20, 1 << 40, (1 << 62)])
    elif kind == 1:
        containers = rng.choice([0, 2, 65536, (1 << 31) - 1])
    elif kind == 2:
        rows_said = rng.choice([2, 4096, 65536])
    deleted = rng.choice([0, 7, 60_000]) if kind == 3 else 1
    key = 65535 if kind == 4 else 0
    bitmap = struct.pack("<IIHHI", 12346, containers, key, rows_said - 1, 16) + struct.pack("<H", deleted)
    return struct.pack("<iqI", 1681511377, bitmaps, 0) + bitmap


def _other_cells(path: Path, rng: random.Random) -> tuple[bytes, str]:
    """A Parquet file of a log with other values in one of its columns, or without it, or with its rows doubled."""
    table = pq.read_table(path)
    what = rng.choice(["null", "gone", "twice", "half"])
    name = rng.choice(table.column_names)
    at = table.column_names.index(name)
    if what == "null" and not pa.types.is_nested(table.schema.field(at).type):
        table = table.set_column(at, table.field(at).with_nullable(True), pa.nulls(len(table), table.field(at).type))
    elif what in ("null", "gone"):
        table = table.remove_column(at)
    elif what == "twice":
        table = pa.concat_tables([table, table])
    else:
        table = table.slice(0, len(table) // 2)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue(), f"{what}: {name}"


# -- Avro --------------------------------------------------------------------------------------------------------------


def _long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    value &= (1 << 64) - 1
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at


def container(data: bytes) -> tuple[dict[str, bytes], bytes, int, bytes]:
    """(metadata, sync marker, count of the first block, its plain bytes)."""
    at, metadata = 4, {}
    count, at = _read_long(data, at)
    while count:
        for _ in range(count):
            length, at = _read_long(data, at)
            key, at = data[at : at + length].decode(), at + length
            length, at = _read_long(data, at)
            metadata[key], at = data[at : at + length], at + length
        count, at = _read_long(data, at)
    sync, at = data[at : at + 16], at + 16
    count, at = _read_long(data, at)
    size, at = _read_long(data, at)
    block = data[at : at + size]
    return metadata, sync, count, zlib.decompress(block, -15) if metadata.get("avro.codec") == b"deflate" else block


def put_container(metadata: dict[str, bytes], sync: bytes, count: int, block: bytes, size: int | None) -> bytes:
    head = b"".join(_long(len(k)) + k.encode() + _long(len(v)) + v for k, v in metadata.items())
    return (
        b"Obj\1"
        + _long(len(metadata))
        + head
        + b"\0"
        + sync
        + _long(count)
        + _long(len(block) if size is None else size)
        + block
        + sync
    )


def _harm_avro(path: Path, rng: random.Random) -> str:
    metadata, sync, count, block = container(path.read_bytes())
    metadata["avro.codec"], size = b"null", None
    what = rng.choice(["count", "size", "codec", "schema", "schema", "bytes", "bytes", "bytes"])
    told = what
    if what == "count":
        count = rng.choice([0, count - 1, count + 1])
        told = f"count {count}"
    elif what == "size":
        size = rng.choice([0, len(block) - 1, len(block) + 1])
        told = f"size {size}"
    elif what == "codec":
        metadata["avro.codec"] = rng.choice([b"deflate", b"snappy", b"zstandard", b"x", b"\xff"])
    elif what == "schema":
        text, told = _harm_value(json.loads(metadata["avro.schema"]), rng)
        metadata["avro.schema"] = text.encode()
    elif what == "bytes":
        data = bytearray(block)
        for _ in range(rng.choice([1, 1, 3])):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        block = bytes(data)
    path.write_bytes(put_container(metadata, sync, count, block, size))
    return f"Avro {told}"
