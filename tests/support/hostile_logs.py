"""Delta and Iceberg tables of which one file of the log, or a deletion vector, is damaged or crafted.

make(folder, kind)      a table of 3 commits, partitioned, with rows deleted by position; Delta with a checkpoint too
harm(folder, kind, rng) changes one thing there, and returns what
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
from hostile_footers import read_zigzag, zigzag

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string()), ("p", pa.string())])
_ABSURD: list[Any] = [None, -1, 0, 1, 1 << 31, (1 << 63) - 1, -(1 << 63), 10**30, 1e308, 0.5, True]
_ABSURD += ["", "x", "../../../../etc/passwd", "\0", "é" * 70_000, [], {}, [None], {"x": {"y": []}}]


def rows(first: int) -> pa.Table:
    numbers = range(first, first + 8)
    return pa.table([list(numbers), [f"s{i}" for i in numbers], ["xy"[i % 2] for i in numbers]], schema=SCHEMA)


# -- whole tables ------------------------------------------------------------------------------------------------------


def make(folder: Path, kind: str) -> Path:
    """Create the table and return its folder."""
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
    """Delete rows by a vector in a file next to the data: its version, size, bytes and checksum."""
    data = log_lakes.bitmap_array(deleted)
    file = b"\1" + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    (lake / "vector.bin").write_bytes(file)
    vector = {"storageType": "p", "pathOrInlineDv": f"file://{lake}/vector.bin", "offset": 1}
    log_lakes.delete_rows(lake, path, deleted, log_lakes.deletion_vector(deleted) | vector)


def _make_iceberg(folder: Path) -> Path:
    their = log_lakes.iceberg_table(folder, SCHEMA, "p")
    for first in (0, 8, 16):
        their.append(rows(first))
    lake = folder / "lake" / "t"
    data = next(iter(their.scan().plan_files())).file.file_path
    log_lakes.delete_positions(lake, data, [1])
    return lake


def files_of(lake: Path, kind: str) -> list[Path]:
    """The files that may be harmed."""
    if kind == "delta":
        found = sorted(p for p in (lake / "_delta_log").rglob("*") if p.is_file() and not p.name.startswith("_commit"))
        return [*found, lake / "vector.bin"]
    metadata = log_lakes.newest_metadata(lake)
    return [metadata, metadata, *sorted((lake / "metadata").glob("*.avro")), *(lake / "data").glob("deletes-*")]


# -- harm --------------------------------------------------------------------------------------------------------------


def harm(lake: Path, kind: str, rng: random.Random) -> str:
    """Harm one file of the log. Return its name and what was done to it."""
    path = rng.choice(files_of(lake, kind))
    if rng.random() < 0.2:
        done = _not_a_file(path, rng)
    elif kind == "delta" and path.suffix == ".json" and rng.random() < 0.4:
        done = _harm_vector(lake, path, rng)
    elif path.suffix == ".json" or path.name == "_last_checkpoint":
        done = _harm_json(path, rng)
    elif path.suffix == ".avro":
        done = _harm_avro(path, rng)
    elif path.suffix == ".parquet":
        data, done = hostile_footers.harmed(path.read_bytes(), rng.getrandbits(30))
        if rng.random() < 0.4:
            data, done = _other_cells(path, rng)
        path.write_bytes(data)
    else:
        done = _harm_bytes(path, rng)
    return f"{path.name}: {done}"


def _not_a_file(path: Path, rng: random.Random) -> str:
    what = rng.choice(["folder", "loop", "missing", "empty", "cut", "noise"])
    if what in ("loop", "folder") and path.name.endswith(".metadata.json"):
        what = "missing"  # neither is a file, and the one before it is the newest
    data = path.read_bytes()
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "loop":
        path.symlink_to(path)
    elif what != "missing":
        noise = bytes(rng.randrange(256) for _ in range(300))
        path.write_bytes({"empty": b"", "cut": data[: rng.randrange(len(data))], "noise": noise}[what])
    return what


def _harm_bytes(path: Path, rng: random.Random) -> str:
    data, done = hostile_footers.harm_bytes(path.read_bytes(), rng)
    path.write_bytes(data)
    return done


def _places(value: Any, path: tuple = ()) -> list[tuple]:
    """The way to every value within a value of JSON."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return found + [place for key, inner in items for place in _places(inner, (*path, key))]


def _harm_value(whole: Any, rng: random.Random) -> tuple[str, str]:
    """(the text of a value of JSON in which one thing is changed, what)."""
    place = rng.choice(_places(whole))
    parent, last = whole, place[-1]
    for key in place[:-1]:
        parent = parent[key]
    old = parent[last]
    what = rng.choice(["absurd", "absurd", "absurd", "missing", "more", "text"])
    if what == "missing":
        del parent[last]
    elif what == "more" and isinstance(old, int) and not isinstance(old, bool):
        parent[last] = old + rng.choice([1, -1, 1000, 1 << 40])
    elif what == "text" and isinstance(old, str):
        parent[last] = rng.choice([old + "x", old[:-1], old.upper(), old * 1000, old[::-1]])
    elif isinstance(old, list) and old and rng.random() < 0.5:
        parent[last] = old + old
    else:
        parent[last] = rng.choice(_ABSURD)
    new = repr(parent[last])[:60] if what != "missing" else ""
    return json.dumps(whole), f"{'.'.join(map(str, place))}: {what} {new}"


def _harm_json(path: Path, rng: random.Random) -> str:
    if rng.random() < 0.15:
        return _harm_bytes(path, rng)
    if path.suffix != ".json" or path.parent.name != "_delta_log":
        text, done = _harm_value(json.loads(path.read_text()), rng)
        path.write_text(text)
        return done
    lines = path.read_text().splitlines()
    number = rng.randrange(len(lines))
    what = rng.choice(["value"] * 6 + ["stats", "stats", "twice", "missing"])
    if what == "value":
        lines[number], done = _harm_value(json.loads(lines[number]), rng)
    elif what == "stats":
        done = "no statistics"
        for at, line in enumerate(lines):
            action = json.loads(line)
            if action.get("add", {}).get("stats"):
                action["add"]["stats"], done = _harm_value(json.loads(action["add"]["stats"]), rng)
                lines[at] = json.dumps(action)
    else:
        lines[number : number + 1] = [lines[number]] * (2 if what == "twice" else 0)
        done = f"line {number} {what}"
    path.write_text("\n".join(lines))
    return done


def _harm_vector(lake: Path, path: Path, rng: random.Random) -> str:
    """Make the descriptor of a deletion vector wrong."""
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
            vector["storageType"], vector["pathOrInlineDv"] = "i", log_lakes.inline(_wrong_bitmap(rng))
            vector["sizeInBytes"] = len(_wrong_bitmap(rng))
            vector.pop("offset", None)
        lines[at] = json.dumps(action)
        path.write_text("\n".join(lines))
        return f"vector {what}: {str(vector.get(what))[:40]}"
    return _harm_json(path, rng)


def _wrong_bitmap(rng: random.Random) -> bytes:
    """A bitmap array whose counts are not those of what follows, or whose rows are beyond the file's."""
    kind = rng.randrange(5)
    bitmaps, containers, row_count = 1, 1, 1
    if kind == 0:
        bitmaps = rng.choice([0, 2, 1 << 20, 1 << 40, (1 << 62)])
    elif kind == 1:
        containers = rng.choice([0, 2, 65536, (1 << 31) - 1])
    elif kind == 2:
        row_count = rng.choice([2, 4096, 65536])
    deleted = rng.choice([0, 7, 60_000]) if kind == 3 else 1
    key = 65535 if kind == 4 else 0
    bitmap = struct.pack("<IIHHI", 12346, containers, key, row_count - 1, 16) + struct.pack("<H", deleted)
    return struct.pack("<iqI", 1681511377, bitmaps, 0) + bitmap


def _other_cells(path: Path, rng: random.Random) -> tuple[bytes, str]:
    """A Parquet file of a log with other values in one of its columns, or without it, or with its rows doubled."""
    table = pq.read_table(path)
    what = rng.choice(["null", "missing", "twice", "half"])
    name = rng.choice(table.column_names)
    at = table.column_names.index(name)
    if what == "null" and not pa.types.is_nested(table.schema.field(at).type):
        table = table.set_column(at, table.field(at).with_nullable(True), pa.nulls(len(table), table.field(at).type))
    elif what in ("null", "missing"):
        table = table.remove_column(at)
    elif what == "twice":
        table = pa.concat_tables([table, table])
    else:
        table = table.slice(0, len(table) // 2)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue(), f"{what}: {name}"


# -- Avro --------------------------------------------------------------------------------------------------------------


def container(data: bytes) -> tuple[dict[str, bytes], bytes, int, bytes]:
    """(metadata, sync marker, count of the first block, its plain bytes)."""
    at, metadata = 4, {}
    count, at = read_zigzag(data, at)
    while count:
        for _ in range(count):
            length, at = read_zigzag(data, at)
            key, at = data[at : at + length].decode(), at + length
            length, at = read_zigzag(data, at)
            metadata[key], at = data[at : at + length], at + length
        count, at = read_zigzag(data, at)
    sync, at = data[at : at + 16], at + 16
    count, at = read_zigzag(data, at)
    size, at = read_zigzag(data, at)
    block = data[at : at + size]
    return metadata, sync, count, zlib.decompress(block, -15) if metadata.get("avro.codec") == b"deflate" else block


def put_container(metadata: dict[str, bytes], sync: bytes, count: int, block: bytes, size: int | None = None) -> bytes:
    """A container of one block, whose header may state another size."""
    pairs = [zigzag(len(text)) + text for key, value in metadata.items() for text in (key.encode(), value)]
    header = zigzag(count) + zigzag(len(block) if size is None else size)
    return b"".join([b"Obj\1", zigzag(len(metadata)), *pairs, b"\0", sync, header, block, sync])


def _harm_avro(path: Path, rng: random.Random) -> str:
    metadata, sync, count, block = container(path.read_bytes())
    metadata["avro.codec"], size = b"null", None
    what = rng.choice(["count", "size", "codec", "schema", "schema", "bytes", "bytes", "bytes"])
    done = what
    if what == "count":
        count = rng.choice([0, count - 1, count + 1])
        done = f"count {count}"
    elif what == "size":
        size = rng.choice([0, len(block) - 1, len(block) + 1])
        done = f"size {size}"
    elif what == "codec":
        metadata["avro.codec"] = rng.choice([b"deflate", b"snappy", b"zstandard", b"x", b"\xff"])
    elif what == "schema":
        text, done = _harm_value(json.loads(metadata["avro.schema"]), rng)
        metadata["avro.schema"] = text.encode()
    elif what == "bytes":
        data = bytearray(block)
        for _ in range(rng.choice([1, 1, 3])):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        block = bytes(data)
    path.write_bytes(put_container(metadata, sync, count, block, size))
    return f"Avro {done}"
