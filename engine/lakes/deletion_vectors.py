"""Delta deletion vectors: which files have one, and which rows it deletes.

The descriptors are in the newest checkpoint and in the commits after it. The rows are a 64-bit Roaring bitmap, in the
descriptor or in a file (the Delta protocol, "Deletion Vectors"), which `pyroaring` decodes. `deltalake` offers only one
mask of every row of every file, which does not finish for a table with 1,000 vectors.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np

from ...errors import CorruptionError, NotATableError, NotReadableError, SkipstoneError
from ..parquet.footers import open_parquet
from ..storage import Entry, Storage
from ..storage.interface import leads_out
from ..storage.threads import side_by_side
from .table_format import missing_package, table_path

LOG_FOLDER = "_delta_log"
_SIDECARS = f"{LOG_FOLDER}/_sidecars"
_CHECKPOINT = re.compile(r"/(\d{20})\.checkpoint\.(?:([^/]*)\.)?(parquet|json)\Z", re.ASCII)
_PART = re.compile(r"\d{10}\.(\d{10})\Z", re.ASCII)
_COMMIT = re.compile(r"/(\d{20})\.json\Z", re.ASCII)
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85_TO_B85 = bytes.maketrans(_Z85 + b";_`|~", _B85 + bytes(5))
_MAGIC = struct.pack("<I", 1681511377)  # of a RoaringBitmapArray in the portable format
_UUID_CHARS = 20
_BYTES_MAX = (1 << 31) - 1
_ROWS_UNCHECKED = 1 << 20  # a vector that deletes more rows must fit the row count of its data file


@dataclass(frozen=True)
class DeletionVector:
    """A descriptor of the log.

    kind         "i": the rows are in `text`; "u" or "p": in a file that `text` names
    offset       where the vector starts in its file
    size_bytes   of the vector
    cardinality  how many rows it deletes
    """

    kind: str
    text: str
    offset: int | None
    size_bytes: int
    cardinality: int

    @classmethod
    def of(cls, descriptor: Mapping[str, Any]) -> DeletionVector:
        """Read a descriptor. Raises ValueError, LookupError or TypeError if it does not follow the protocol."""
        kind, text = descriptor["storageType"], descriptor["pathOrInlineDv"]
        offset, size_bytes, cardinality = descriptor.get("offset"), descriptor["sizeInBytes"], descriptor["cardinality"]
        if not isinstance(kind, str) or not isinstance(text, str):
            raise TypeError("its location is not a string")
        for number in (offset or 0, size_bytes, cardinality):
            if type(number) is not int or number < 0:
                raise ValueError(f"{str(number)[:50]} is not a count")
        if size_bytes > _BYTES_MAX:
            raise ValueError(f"{size_bytes:,} bytes are more than the protocol allows")
        return cls(kind, text, offset, size_bytes, cardinality)

    @property
    def unique_id(self) -> str:
        """The protocol's id."""
        return f"{self.kind}{self.text}" + ("" if self.offset is None else f"@{self.offset}")


# -- which files have a vector ----------------------------------------------------------------------------------------


def live_vectors(storage: Storage, version: int) -> dict[str, DeletionVector]:
    """Return the deletion vector of each live file that has one, by the path in the log.

    Raises CorruptionError if a descriptor is damaged or a file has two vectors, NotATableError if commits expired.
    """
    checkpoint, commits = _checkpoint_and_commits(storage, version)
    live: dict[tuple[str, str], DeletionVector] = {}
    for path, descriptor in _of_checkpoint(storage, checkpoint):
        vector = _vector(storage, path, descriptor)
        live[path, vector.unique_id] = vector
    texts = side_by_side(storage, storage.read, commits, "skipstone-log")
    for commit, text in zip(commits, texts, strict=True):
        for line in text.splitlines():
            for name, action in _json(storage, commit, line).items() if b"deletionVector" in line else ():
                descriptor = action.get("deletionVector") if isinstance(action, dict) else None
                if name in ("add", "remove") and descriptor is not None:
                    vector = _vector(storage, action.get("path"), descriptor)
                    if name == "add":
                        live[action["path"], vector.unique_id] = vector
                    else:
                        live.pop((action["path"], vector.unique_id), None)
    vectors: dict[str, DeletionVector] = {}
    for (path, _), vector in live.items():
        with _damage(storage, path):
            if vectors.setdefault(path, vector) is not vector:
                raise ValueError("two deletion vectors are live")
    return vectors


def _checkpoint_and_commits(storage: Storage, version: int) -> tuple[list[Entry], list[str]]:
    """Return the files of the newest complete checkpoint up to a version, and the paths of the commits after it."""
    files, _ = storage.list_folder(LOG_FOLDER)
    checkpoints: dict[int, dict[str, list[Entry]]] = {}
    for entry in files:
        match = _CHECKPOINT.search(entry.path)
        if match is not None and int(match[1]) <= version:
            part = _PART.match(match[2] or "")
            kind = entry.path if part is None else part[1]  # for a checkpoint in parts: the number of parts
            checkpoints.setdefault(int(match[1]), {}).setdefault(kind, []).append(entry)
    complete = {
        number: parts
        for number, kinds in checkpoints.items()
        for kind, parts in kinds.items()
        if not kind.isdigit() or len(parts) == int(kind)
    }
    newest = max(complete, default=-1)
    numbers = {int(match[1]): f.path for f in files if (match := _COMMIT.search(f.path))}
    wanted = range(newest + 1, version + 1)
    missing = [number for number in wanted if number not in numbers]
    if missing:
        raise NotATableError(
            f"{storage.uri}: version {version} needs commit {missing[0]} of its Delta log, which expired"
        )
    return complete.get(newest, []), [numbers[number] for number in wanted]


def _of_checkpoint(storage: Storage, checkpoint: Sequence[Entry]) -> Iterator[tuple[Any, Any]]:
    """Yield (path, descriptor) of the files in a checkpoint that have a vector."""
    sidecars: list[Any] = []
    for entry in checkpoint:
        if entry.path.endswith(".json"):
            for line in storage.read(entry.path).splitlines():
                action = _json(storage, entry.path, line)
                if "sidecar" in action:
                    sidecars.append(action["sidecar"].get("path"))
                elif "add" in action:
                    yield action["add"].get("path"), action["add"].get("deletionVector")
        else:
            sidecars += [each["path"] for each in _cells(storage, entry.path, "sidecar", "path")]
            yield from _adds(storage, entry.path)
    for name in sidecars:
        if not isinstance(name, str) or leads_out(name):
            raise NotReadableError(f"{storage.uri}: its Delta log names a sidecar outside the log, {name!r}")
        yield from _adds(storage, f"{_SIDECARS}/{name}")


def _adds(storage: Storage, path: str) -> Iterator[tuple[Any, Any]]:
    for add in _cells(storage, path, "add", "deletionVector", "path"):
        yield add["path"], add["deletionVector"]


def _cells(storage: Storage, path: str, column: str, wanted: str, *more: str) -> Iterator[dict[str, Any]]:
    """Yield these fields of a struct column of a checkpoint where the field `wanted` is not null."""
    with open_parquet(storage, storage.stat(path), is_checked=False) as file:
        fields = [f"{column}.{name}" for name in (wanted, *more)]
        leaves = [file.metadata.schema.column(i).path for i in range(file.metadata.num_columns)]
        if not all(any(leaf == field or leaf.startswith(f"{field}.") for leaf in leaves) for field in fields):
            return
        for batch in file.iter_batches(columns=fields, use_threads=False):
            actions = batch.column(0)
            for action in actions.filter(actions.field(wanted).is_valid()).to_pylist():
                if action is not None and action[wanted] is not None:
                    yield action


def _json(storage: Storage, path: str, line: bytes) -> dict:
    try:
        action = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise NotReadableError(f"{storage.uri}: {path} is not JSON ({type(error).__name__})") from None
    return action if isinstance(action, dict) else {}


def _vector(storage: Storage, path: Any, descriptor: Any) -> DeletionVector:
    with _damage(storage, path):
        if not isinstance(path, str):
            raise TypeError("its data file is not named")
        return DeletionVector.of(descriptor)


def vector_id(descriptor: Mapping[str, Any] | None) -> str | None:
    """Return the protocol's id of the vector that an action describes. Raises as `DeletionVector.of`."""
    return None if descriptor is None else DeletionVector.of(descriptor).unique_id


# -- the rows that a vector deletes -----------------------------------------------------------------------------------


def rows_of(storage: Storage, vectors: Mapping[str, DeletionVector]) -> dict[str, np.ndarray]:
    """Return the deleted rows of each file, by its path in the manifest: int64, ascending.

    Raises CorruptionError, which names the data file and the file of the vector, if a vector is damaged.
    """
    rows, in_files = {}, defaultdict(list)
    for path, vector in vectors.items():
        with _damage(storage, path):
            if vector.kind == "i":
                rows[path] = _rows(storage, path, vector, _decoded(vector.text)[: vector.size_bytes])
            else:
                in_files[_file_of(storage, vector)].append((path, vector))
    for file, named in in_files.items():
        ranges = [(vector.offset or 0, vector.size_bytes + 8) for _, vector in named]
        version, *parts = storage.read_ranges(file, [(0, 1), *ranges])
        for (path, vector), part in zip(named, parts, strict=True):
            with _damage(storage, path, file):
                if version != b"\1":
                    raise ValueError("the version of its file is unknown")
                rows[path] = _rows(storage, path, vector, _unframed(part, vector))
    return rows


def _file_of(storage: Storage, vector: DeletionVector) -> str:
    """Return the path of the file that contains a vector, as in the manifest."""
    if vector.kind == "p":
        return table_path(storage, unquote(vector.text))
    if vector.kind != "u":
        raise ValueError(f"its storage type {vector.kind[:20]!r} is unknown")
    prefix, packed = vector.text[:-_UUID_CHARS], vector.text[-_UUID_CHARS:]
    if len(packed) < _UUID_CHARS or leads_out(prefix):
        raise ValueError("it does not name a file")
    name = f"deletion_vector_{uuid.UUID(bytes=_decoded(packed))}.bin"
    return f"{prefix}/{name}" if prefix else name


def _decoded(text: str) -> bytes:
    """Decode base 85 with the alphabet of ZeroMQ (RFC 32/Z85)."""
    return base64.b85decode(text.encode("ascii").translate(_Z85_TO_B85))


def _unframed(part: bytes, vector: DeletionVector) -> bytes:
    """Return a vector of a file without its size before it and its CRC-32 after it."""
    if len(part) < vector.size_bytes + 8:
        raise ValueError("its file ends before it")
    (size,), (checksum,) = struct.unpack_from(">I", part), struct.unpack_from(">I", part, len(part) - 4)
    if size != vector.size_bytes:
        raise ValueError(f"it has {size:,} bytes instead of {vector.size_bytes:,}")
    if binascii.crc32(part[4:-4]) != checksum:
        raise ValueError("its checksum does not match")
    return part[4:-4]


def _rows(storage: Storage, path: str, vector: DeletionVector, data: bytes) -> np.ndarray:
    try:
        from pyroaring import BitMap64
    except ImportError as error:
        raise missing_package("pyroaring", "delta") from error
    if data[: len(_MAGIC)] != _MAGIC:
        raise ValueError("its format is unknown")
    bitmap = BitMap64.deserialize(data[len(_MAGIC) :])
    if len(bitmap) != vector.cardinality:
        raise ValueError(f"it deletes {len(bitmap):,} rows instead of {vector.cardinality:,}")
    if len(bitmap) > _ROWS_UNCHECKED:
        with open_parquet(storage, storage.stat(path), is_checked=False) as file:
            if len(bitmap) > file.metadata.num_rows:
                raise ValueError(f"it deletes {len(bitmap):,} of {file.metadata.num_rows:,} rows")
    rows = np.asarray(bitmap.to_array()).astype(np.int64)
    if np.any(np.diff(rows, prepend=-1) <= 0):
        raise ValueError("its rows are not in order")
    return rows


@contextmanager
def _damage(storage: Storage, path: Any, file: str | None = None) -> Iterator[None]:
    """Turn an error about a vector into a CorruptionError that names the data file, and the file of the vector."""
    try:
        yield
    except (ValueError, LookupError, TypeError) as error:
        if isinstance(error, SkipstoneError):
            raise
        within = "" if file is None else f" in {file}"
        raise CorruptionError(
            f"the deletion vector of {str(path)[:300]}{within} is damaged: {error}",
            path=storage.uri,
            check="deletion vector",
            hint="restore the file, or restore the table with its own writer to a version before the delete",
        ) from error
