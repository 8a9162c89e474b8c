"""The deletion vectors of a Delta table: which files have one, and the rows that one takes out.

The descriptors come from the checkpoint and the commits after it, the bits from the descriptor itself or from a file
(the Delta protocol, "Deletion Vectors"). deltalake reads those of all files at once, and at bits that lie it asks for
gigabytes or panics. Here every length, count and order is checked against the bytes at hand, and the number of rows
against what the log and the data file say, before memory is taken for them.
"""

from __future__ import annotations

import binascii
import json
import struct
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np

from ...errors import CorruptionError, NotATableError, NotReadableError
from ..parquet.footers import open_parquet
from ..storage import Storage
from ..storage.interface import leads_out
from .delta_files import SIDECARS, LogSegment
from .log_files import table_path

_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = np.full(256, 255, np.uint8)
_DIGITS[np.frombuffer(_Z85, np.uint8)] = np.arange(85)
_MAGIC = 1681511377  # of a RoaringBitmapArray in the portable format
_RUNS, _NO_RUNS = 12347, 12346  # cookies of a Roaring bitmap
_OFFSETS_FROM = 4  # containers: a bitmap with runs names their offsets from so many on
_ARRAY_ROWS_MAX = 4096  # of a container; more are a bitmap of 65,536
_BITMAP_BYTES = 8192
_UUID_CHARS = 20
_ROWS_UNCHECKED = 1 << 20  # that are taken on the log's word; more only where the data file holds as many
_Key = tuple[str, str | None]


@dataclass(frozen=True)
class DeletionVector:
    """A descriptor; what is checked of it is checked where it is read."""

    kind: str
    text: str
    offset: int | None
    size_bytes: int
    cardinality: int

    @classmethod
    def of(cls, descriptor: Mapping[str, Any]) -> DeletionVector:
        """Raises ValueError, LookupError or TypeError for one of another form than the protocol's."""
        kind, text = descriptor["storageType"], descriptor["pathOrInlineDv"]
        numbers = descriptor.get("offset"), descriptor["sizeInBytes"], descriptor["cardinality"]
        if not isinstance(kind, str) or not isinstance(text, str):
            raise TypeError("its place is no text")
        if any(type(n) is not int or not 0 <= n < 1 << 63 for n in numbers if n is not None) or None in numbers[1:]:
            raise ValueError("a number of it is none, or out of range")
        return cls(kind, text, *numbers)

    @property
    def unique_id(self) -> str:
        """The protocol's."""
        return f"{self.kind}{self.text}" + ("" if self.offset is None else f"@{self.offset}")


# -- which files have one ---------------------------------------------------------------------------------------------


def live_vectors(storage: Storage, segment: LogSegment) -> dict[str, DeletionVector]:
    """path, as the log has it -> the deletion vector of that live file. Raises CorruptionError for a descriptor that is
    none, and for a file that has two; NotATableError where commits expired."""
    if not segment.has_all:
        raise NotATableError(f"{storage.uri}: commits of its Delta log are missing before version {segment.version}")
    live: dict[_Key, DeletionVector] = {}
    for path, descriptor in _in_checkpoint(storage, segment):
        _add(storage, live, path, descriptor)
    for commit, lines in segment.commits:
        for line in lines:
            for name, action in _object(storage, commit, line).items():
                if name in ("add", "remove") and isinstance(action, dict) and action.get("deletionVector") is not None:
                    _add(storage, live, action.get("path"), action["deletionVector"], is_removed=name == "remove")
    vectors: dict[str, DeletionVector] = {}
    for (path, _), vector in live.items():
        if path in vectors:
            raise _damaged(storage, path, "two deletion vectors are live")
        vectors[path] = vector
    return vectors


def _add(
    storage: Storage, live: dict[_Key, DeletionVector], path: Any, descriptor: Any, *, is_removed: bool = False
) -> None:
    try:
        if not isinstance(path, str) or not isinstance(descriptor, dict):
            raise TypeError("it is none")
        vector = DeletionVector.of(descriptor)
    except (ValueError, LookupError, TypeError) as error:
        raise _damaged(storage, path, f"no whole descriptor ({error})") from error
    if is_removed:
        live.pop((path, vector.unique_id), None)
    else:
        live[path, vector.unique_id] = vector


def _in_checkpoint(storage: Storage, segment: LogSegment) -> Iterator[tuple[Any, Any]]:
    """(path, descriptor) of the files of a checkpoint that have one."""
    sidecars: list[Any] = []
    for entry in segment.checkpoint:
        if entry.path.endswith(".json"):
            for line in storage.read(entry.path, entry.size_bytes).splitlines():
                if b'"sidecar"' in line or b"eletionVector" in line or b"\\u" in line:
                    action = _object(storage, entry.path, line)
                    sidecars += [each.get("path") for each in _dicts(action.get("sidecar"))]
                    yield from ((add.get("path"), add.get("deletionVector")) for add in _dicts(action.get("add")))
        else:
            sidecars += [each["path"] for each in _cells(storage, entry.path, "sidecar", "path")]
            yield from _adds(storage, entry.path)
    for name in sidecars:
        if not isinstance(name, str) or leads_out(name):
            raise NotReadableError(f"{storage.uri}: its Delta log names a part of a checkpoint outside of it, {name!r}")
        yield from _adds(storage, f"{SIDECARS}/{name}")


def _adds(storage: Storage, path: str) -> Iterator[tuple[Any, Any]]:
    for add in _cells(storage, path, "add", "deletionVector", "path"):
        yield add["path"], add["deletionVector"]


def _cells(storage: Storage, path: str, column: str, wanted: str, *more: str) -> Iterator[dict[str, Any]]:
    """Of a part of a checkpoint, the values of an action's fields where the first one is not null."""
    with open_parquet(storage, storage.stat(path), is_checked=False) as file:
        fields = [f"{column}.{name}" for name in (wanted, *more)]
        leaves = [file.metadata.schema.column(i).path for i in range(file.metadata.num_columns)]
        if not all(any(leaf == field or leaf.startswith(f"{field}.") for leaf in leaves) for field in fields):
            return
        for batch in file.iter_batches(columns=fields):
            actions = batch.column(0)
            values = actions.field(wanted)
            if values.null_count < len(values):
                for action in actions.filter(values.is_valid()).to_pylist():
                    if action is not None and action[wanted] is not None:
                        yield action


def _dicts(value: Any) -> list[dict]:
    return [value] if isinstance(value, dict) else []


def _object(storage: Storage, path: str, line: bytes) -> dict:
    try:
        action = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotReadableError(f"{storage.uri}: no JSON in {path} ({type(error).__name__})") from None
    return action if isinstance(action, dict) else {}


# -- the rows that they take out --------------------------------------------------------------------------------------


def rows_of(storage: Storage, vectors: Mapping[str, DeletionVector]) -> dict[str, np.ndarray]:
    """path -> int64, ascending: the rows that its vector takes out; `vectors` by paths as the manifest has them.

    Raises CorruptionError, naming the table and the file of the vector, for one that is damaged; as the storage for one
    that cannot be read.
    """
    rows, in_files = {}, defaultdict(list)
    for path, vector in vectors.items():
        if vector.kind == "i":
            with _Damage(storage, path, None):
                rows[path] = _rows(_unpacked(vector), vector, _row_limit(storage, path, vector))
        else:
            with _Damage(storage, path, None):
                in_files[_file_of(storage, vector)].append((path, vector))
    for file, named in in_files.items():
        size = storage.stat(file).size_bytes
        for path, vector in named:
            with _Damage(storage, path, file):
                _check(vector.offset is not None and vector.offset >= 1, "no offset")
                assert vector.offset is not None
                _check(vector.offset + 8 + vector.size_bytes <= size, f"{vector.size_bytes:,} bytes, beyond its file")
        parts = storage.read_ranges(file, [(0, 1), *((v.offset or 0, v.size_bytes + 8) for _, v in named)])
        for (path, vector), part in zip(named, parts[1:], strict=True):
            with _Damage(storage, path, file):
                _check(parts[0] == b"\1", "a version of its file that is unknown")
                rows[path] = _rows(_framed(part, vector), vector, _row_limit(storage, path, vector))
    return rows


def _row_limit(storage: Storage, path: str, vector: DeletionVector) -> Callable[[], int]:
    """Gives how many rows a vector may take out of its file at most."""

    def limit() -> int:
        if vector.cardinality <= _ROWS_UNCHECKED:
            return _ROWS_UNCHECKED
        with open_parquet(storage, storage.stat(path), is_checked=False) as file:
            return file.metadata.num_rows

    return limit


def _file_of(storage: Storage, vector: DeletionVector) -> str:
    """Where a vector lies, as the manifest would have it."""
    if vector.kind == "p":
        return table_path(storage, unquote(vector.text))
    _check(vector.kind == "u", f"a kind that is unknown, {vector.kind[:20]!r}")
    prefix, packed = vector.text[:-_UUID_CHARS], vector.text[-_UUID_CHARS:]
    _check(len(packed) == _UUID_CHARS and not leads_out(prefix), "no name of a file")
    name = f"deletion_vector_{uuid.UUID(bytes=_z85(packed))}.bin"
    return f"{prefix}/{name}" if prefix else name


def _unpacked(vector: DeletionVector) -> bytes:
    data = _z85(vector.text)
    _check(len(data) - 4 < vector.size_bytes <= len(data), f"{vector.size_bytes:,} bytes of {len(data):,}")
    return data[: vector.size_bytes]


def _framed(part: bytes, vector: DeletionVector) -> bytes:
    """The bits of a vector in a file, of which the size stands before and the checksum after them."""
    _check(len(part) == vector.size_bytes + 8, "it ends early")
    (size,), (checksum,) = struct.unpack_from(">I", part), struct.unpack_from(">I", part, len(part) - 4)
    _check(size == vector.size_bytes, f"{size:,} bytes, and the log says {vector.size_bytes:,}")
    data = part[4:-4]
    _check(binascii.crc32(data) == checksum, "its checksum is another")
    return data


def _z85(text: str) -> bytes:
    digits = _DIGITS[np.frombuffer(text.encode("latin-1", "replace"), np.uint8)]
    _check(len(digits) % 5 == 0 and not np.any(digits == 255), "no text in base 85")
    numbers = digits.reshape(-1, 5).astype(np.uint64) @ np.array([85**p for p in (4, 3, 2, 1, 0)], np.uint64)
    _check(not np.any(numbers >> np.uint64(32)), "no text in base 85")
    return numbers.astype(">u4").tobytes()


def _rows(data: bytes, vector: DeletionVector, limit: Callable[[], int]) -> np.ndarray:
    """The rows of an array of Roaring bitmaps: each holds the lower 32 bits of those rows that share the upper ones."""
    bits = _Bits(data)
    _check(bits.number("<I") == _MAGIC, "a format that is unknown")
    count = bits.number("<Q")
    _check(count <= bits.left // 12, f"{count:,} bitmaps in {bits.left:,} bytes")
    rows_max = limit()
    _check(vector.cardinality <= rows_max, f"{vector.cardinality:,} rows of a file of {rows_max:,}")
    parts, last, left = [], -1, vector.cardinality
    for _ in range(count):
        key = bits.number("<I")
        _check(last < key < 1 << 31, "bitmaps in no order")
        last = key
        for part in _bitmap(bits, left):
            left -= len(part)
            parts.append(part + (key << 32))
    _check(not bits.left, f"{bits.left:,} bytes too many")
    _check(not left, f"{vector.cardinality - left:,} rows, and the log says {vector.cardinality:,}")
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _bitmap(bits: _Bits, rows_max: int) -> Iterator[np.ndarray]:
    """The rows of each container of a Roaring bitmap in the portable format, of `rows_max` rows at most."""
    first = bits.position
    cookie = bits.number("<I")
    has_runs = cookie & 0xFFFF == _RUNS
    _check(has_runs or cookie == _NO_RUNS, "no Roaring bitmap")
    count = (cookie >> 16) + 1 if has_runs else bits.number("<I")
    _check(count <= 1 << 16, f"{count:,} containers")
    flags = bits.array(np.uint8, (count + 7) // 8) if has_runs else np.zeros((count + 7) // 8, np.uint8)
    is_run = np.unpackbits(flags, bitorder="little")[:count].astype(bool)
    heads = bits.array("<u2", 2 * count).astype(np.int64).reshape(-1, 2)
    keys, sizes = heads[:, 0], heads[:, 1] + 1
    _check(bool(np.all(np.diff(keys) > 0)), "containers in no order")
    _check(int(sizes.sum()) <= rows_max, "more rows than the log says")
    offsets = bits.array("<u4", count) if not has_runs or count >= _OFFSETS_FROM else None
    for i in range(count):
        _check(offsets is None or int(offsets[i]) == bits.position - first, "a container at another place")
        size = int(sizes[i])
        if is_run[i]:
            rows = _of_runs(bits)
        elif size <= _ARRAY_ROWS_MAX:
            rows = bits.array("<u2", size).astype(np.int64)
            _check(bool(np.all(np.diff(rows) > 0)), "rows in no order")
        else:
            rows = np.flatnonzero(np.unpackbits(bits.array(np.uint8, _BITMAP_BYTES), bitorder="little"))
        _check(len(rows) == size, f"a container of {len(rows):,} rows, and {size:,} are said")
        yield rows + (int(keys[i]) << 16)


def _of_runs(bits: _Bits) -> np.ndarray:
    runs = bits.array("<u2", 2 * bits.number("<H")).astype(np.int64).reshape(-1, 2)
    starts, ends = runs[:, 0], runs[:, 0] + runs[:, 1] + 1
    _check(bool(np.all(ends <= 1 << 16) and np.all(starts[1:] >= ends[:-1])), "runs in no order")
    edges = np.zeros((1 << 16) + 1, np.int8)
    np.add.at(edges, starts, 1)
    np.add.at(edges, ends, -1)
    return np.flatnonzero(np.cumsum(edges[:-1], dtype=np.int8))


class _Bits:
    """Bytes that are read from their beginning to their end, and no further."""

    def __init__(self, data: bytes):
        self._data = data
        self.position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self.position

    def number(self, form: str) -> int:
        (number,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return number

    def array(self, kind: Any, count: int) -> np.ndarray:
        return np.frombuffer(self._take(count * np.dtype(kind).itemsize), kind)

    def _take(self, length: int) -> bytes:
        _check(length <= self.left, "it ends early")
        self.position += length
        return self._data[self.position - length : self.position]


class _DamageFoundError(Exception):
    pass


def _check(is_right: bool, what: str) -> None:
    if not is_right:
        raise _DamageFoundError(what)


class _Damage:
    """What is wrong with a vector, within, becomes a CorruptionError."""

    def __init__(self, storage: Storage, path: str, file: str | None):
        self._storage, self._path, self._file = storage, path, file

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, _DamageFoundError):
            raise _damaged(self._storage, self._path, str(error), self._file) from None


def _damaged(storage: Storage, path: Any, what: str, file: str | None = None) -> CorruptionError:
    within = "" if file is None else f" in {file}"
    return CorruptionError(
        f"the deletion vector of {str(path)[:300]}{within} is damaged: {what}",
        path=storage.uri,
        check="deletion vector",
        hint="restore the file, or the table by its own writer to a version before the delete",
    )
