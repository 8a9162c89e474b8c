"""Statistics of log files, from Hudi's own metadata table (`.hoodie/metadata/column_stats`).

Its records lie in HFiles: bases, and log blocks that hold a whole HFile each. A record says of one column of one file
its least and greatest value. Files of table versions 8 and 9 are never written to again under their name, so a record
is right whichever of them has it, and a file without one is merely not known.

    HFile    blocks one after the other; each of 33 bytes of header, then data, gzip or plain; a trailer of 4,096 bytes
    entry    key length u32, value length u32, key, value, one byte

(HBase's HFile format 3, and Hudi's `HFileReaderImpl` and `HoodieMetadata.avsc`.) What is taken, and why no more, says
docs/decisions/0066.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa

from ...storage import FileMissingError, Storage
from ...storage.threads import prefetched
from .log_blocks import hfile_blocks
from .timeline import FOLDER
from .view import HudiFile, list_partition

_COLUMN_STATS = "column_stats"
_THREADS = 8
_FILE_BYTES_MAX = 16 << 20
_BLOCK_BYTES_MAX = 64 << 20
_OF_A_LOG = b".log."  # in every record of a log file, which names it
_HEADER, _TRAILER_BYTES = struct.Struct(">8siiqBii"), 4096
_DATA, _FILE_INFO, _TRAILER = b"DATABLK*", b"FILEINF2", b'TRABLK"$'
_GZIP, _PLAIN = 1, 2
_ENTRY_COUNT, _CODEC = 7, 12  # fields of the trailer
_INITIAL = "0000000"  # instants that made an index begin so
_FIRST_DAY = (dt.date(1900, 1, 1) - dt.date(1970, 1, 1)).days

Bounds = dict[str, tuple[Any, Any]]
# Of the records that hold a value, by name, and its `HoodieValueTypeInfo`, if any: the type that the column must have.
_TYPES = {
    ("BooleanWrapper", 0): pa.bool_(),
    ("IntWrapper", 0): pa.int32(),
    ("LongWrapper", 0): pa.int64(),
    ("DoubleWrapper", 0): pa.float64(),
    ("StringWrapper", 0): pa.string(),
    ("DateWrapper", 0): pa.date32(),
    ("BooleanWrapper", 2): pa.bool_(),
    ("IntWrapper", 3): pa.int32(),
    ("LongWrapper", 4): pa.int64(),
    ("DoubleWrapper", 6): pa.float64(),
    ("StringWrapper", 7): pa.string(),
    ("IntWrapper", 12): pa.date32(),
    ("LongWrapper", 16): pa.timestamp("us", "UTC"),
}


def log_bounds(
    storage: Storage, properties: Mapping[str, str], logs: Mapping[str, str], types: Mapping[str, pa.DataType]
) -> dict[str, Bounds]:
    """{name of a log file: {column: (least, greatest value)}} of what is known for sure, in the columns' own `types`.

    Args:
        logs: names of log files, each with the commit that wrote it.
    """
    if not logs or _COLUMN_STATS not in properties.get("hoodie.table.metadata.partitions", "").split(","):
        return {}
    try:
        files = _chosen(list_partition(storage, f"{FOLDER}/metadata/{_COLUMN_STATS}"), min(logs.values()))
    except FileMissingError:
        return {}
    records: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for several in prefetched(lambda file: _records(storage, file, logs), files, _THREADS, "skipstone-metadata"):
        for record in several:
            records.setdefault((record["fileName"], record["columnName"]), []).append(record)
    known: dict[str, Bounds] = {}
    for (name, column), same in records.items():
        bounds = _bounds_of(same, types[column]) if column in types else None
        if bounds is not None:
            known.setdefault(name, {})[column] = bounds
    return known


def _chosen(files: list[HudiFile], earliest: str) -> list[HudiFile]:
    """Of each group the latest base, and the logs since it that may tell of commits from `earliest` on."""
    bases: dict[str, HudiFile] = {}
    for file in files:
        if file.log_version is None and file.instant >= bases.get(file.group_id, file).instant:
            bases[file.group_id] = file
    logs = [f for f in files if f.log_version is not None and f.instant >= _start(bases.get(f.group_id), earliest)]
    initial = [f for f in files if f.log_version is not None and f.instant.startswith(_INITIAL)]
    known = {f.path: f for f in (*bases.values(), *logs, *initial)}
    return [f for f in known.values() if f.ending in ("hfile", "log") and f.size_bytes <= _FILE_BYTES_MAX]


def _start(base: HudiFile | None, earliest: str) -> str:
    return earliest if base is None else max(base.instant, earliest)


def _records(storage: Storage, file: HudiFile, names: Collection[str]) -> list[dict[str, Any]]:
    """The statistics of some files that one file of the metadata table holds; none where it is not understood."""
    try:
        (data,) = storage.read_ranges(file.path, [(0, file.size_bytes)])
        parts = [data] if file.log_version is None else hfile_blocks(data)
        return [record for part in parts for record in _statistics(part, names)]
    except (FileMissingError, ValueError, LookupError, TypeError, EOFError, struct.error, zlib.error, RecursionError):
        return []


def _statistics(data: bytes, names: Collection[str]) -> Iterator[dict[str, Any]]:
    import fastavro

    values, schema = hfile_values(data, _OF_A_LOG)
    parsed = fastavro.parse_schema(json.loads(schema))
    for value in values:
        record: Any = fastavro.schemaless_reader(io.BytesIO(value), parsed, return_record_name=True)
        stats: dict[str, Any] = (record["ColumnStatsMetadata"] or ("", {}))[1]
        if stats.get("fileName") in names:
            yield stats


def hfile_values(data: bytes, holding: bytes) -> tuple[list[bytes], bytes]:
    """(the values of an HFile's entries, those that hold some bytes; the schema that the file names). Raises
    ValueError, LookupError, struct.error or zlib.error for what is none, or is not whole."""
    offset = len(data) - _TRAILER_BYTES
    if offset < 0 or data[offset : offset + len(_TRAILER)] != _TRAILER or data[-4:] != b"\0\0\0\3":
        raise ValueError("no HFile of version 3")
    trailer = dict(_fields(_delimited(data, offset + len(_TRAILER))))
    end, position = offset, 0
    values: list[bytes] = []
    count = 0
    information: dict[bytes, bytes] = {}
    while position < end:
        magic, disk_bytes, plain_bytes, _, _, _, stored_bytes = _HEADER.unpack_from(data, position)
        following = position + _HEADER.size + disk_bytes
        if disk_bytes < 0 or following > end:
            raise ValueError("a block ends beyond its file")
        if magic in (_DATA, _FILE_INFO):
            block = _plain(data[position + _HEADER.size : position + stored_bytes], plain_bytes, trailer[_CODEC])
            if magic == _DATA:
                for value in _values(block):
                    count += 1
                    if holding in value:
                        values.append(value)
            else:
                information = dict(_pairs(block))
        position = following
    if count != trailer[_ENTRY_COUNT]:
        raise ValueError("entries are missing")
    return values, information[b"schema"]


def _plain(data: bytes, size_bytes: int, codec: object) -> bytes:
    if not 0 <= size_bytes <= _BLOCK_BYTES_MAX:
        raise ValueError("a block of no size that can be")
    if codec == _GZIP:
        unzip = zlib.decompressobj(31)
        data = unzip.decompress(data, size_bytes)
    elif codec != _PLAIN:
        raise ValueError("a compression that is not known")
    if len(data) != size_bytes:
        raise ValueError("a block is not of its size")
    return data


def _values(block: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(block):
        key_bytes, value_bytes = struct.unpack_from(">II", block, position)
        start = position + 8 + key_bytes
        position = start + value_bytes + 1
        if position > len(block) or block[position - 1] != 0:
            raise ValueError("an entry ends beyond its block")
        yield block[start : position - 1]


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a file's information."""
    if block[:4] != b"PBUF":
        raise ValueError("no information of a file")
    for _, pair in _fields(_delimited(block, 4)):
        entry = dict(_fields(pair))
        yield entry[1], entry.get(2, b"")


def _delimited(data: bytes, position: int) -> bytes:
    length, position = _varint(data, position)
    return data[position : position + length]


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message of Protocol Buffers: numbers and bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        value: int | bytes
        value, position = _varint(data, position)
        if tag & 7 == 2:
            length = value
            value = data[position : position + length]
            position += length
        elif tag & 7:
            raise ValueError("a field of a kind that is not known")
        yield tag >> 3, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        number |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return number, position


def _bounds_of(records: list[dict[str, Any]], kind: pa.DataType) -> tuple[Any, Any] | None:
    """What several records of one file and column say together; None where one of them says nothing for sure."""
    pairs = [_bounds(record, kind) for record in records]
    known = [pair for pair in pairs if pair is not None]
    if len(known) < len(pairs):
        return None
    return min(lower for lower, _ in known), max(upper for _, upper in known)


def _bounds(record: dict[str, Any], kind: pa.DataType) -> tuple[Any, Any] | None:
    if record["isDeleted"] or record["minValue"] is None or record["maxValue"] is None:
        return None
    (name, lower), (upper_name, upper) = record["minValue"], record["maxValue"]
    value_type: dict[str, Any] = (record.get("valueType") or ("", {}))[1]
    wanted = _TYPES.get((name.rsplit(".", 1)[-1], value_type.get("typeOrdinal", 0)))
    if upper_name != name or wanted != kind:
        return None
    lower, upper = lower["value"], upper["value"]
    if isinstance(lower, str):  # ordered by UTF-16 or by UTF-8, which agree where no surrogates come in
        is_known = max(lower + upper, default="") < "\ud800"
    elif pa.types.is_date32(kind):  # older days are counted by two calendars
        is_known = lower >= _FIRST_DAY
    else:
        is_known = not (isinstance(lower, float) and math.isnan(lower + upper))
    return (lower, upper) if is_known and lower <= upper else None
