"""The files of an Iceberg log, read with care: a table may come from a stranger, and `pyiceberg` trusts what it reads.

Only the caller's options say what opens files. A table's own properties may name endpoints, and with
`py-io-impl` any callable of any module; `pyiceberg.table.StaticTable.from_metadata` would follow them.

Only regular files are read, of a size that a log may have. An Avro file (Avro 1.11, "Object Container Files") must be
whole, must not inflate to much more than its size, and must hold no more values than bytes: else a file of a few bytes
could ask for any amount of memory and time. How many entries a manifest has is checked against the list that names it.
"""

from __future__ import annotations

import bz2
import io
import json
import os
import stat
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import NotReadableError
from ..storage import Storage
from . import METADATA_ENDING
from .log_files import missing_package

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table import StaticTable
    from pyiceberg.table.snapshots import Snapshot

_FILE_BYTES_MAX = 1 << 30
_INFLATED_MIN, _INFLATED_RATIO_MAX = 64 << 20, 200
_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_DEPTH_MAX = 64


def static_table(storage: Storage, path: str, options: Mapping[str, str]) -> StaticTable:
    """The table of a metadata file, relative to the storage's root or absolute."""
    try:
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.io import load_file_io
        from pyiceberg.serializers import FromInputFile
        from pyiceberg.table import StaticTable
    except ImportError as error:
        raise missing_package("pyiceberg", "iceberg") from error
    uri = path if os.path.isabs(path) or "://" in path else f"{storage.uri}/{path}"
    files = load_file_io(dict(options), location=uri)
    with open_checked(files, uri) as file:
        data = file.read()
    if uri.endswith(f".gz{METADATA_ENDING}"):
        inflated_max = max(_INFLATED_MIN, _INFLATED_RATIO_MAX * len(data))
        if len(zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, inflated_max + 1)) > inflated_max:
            raise NotReadableError(f"{uri}: inflates to much more than its size")
    source: Any = _Input(uri, data)
    metadata = FromInputFile.table_metadata(source)
    return StaticTable(("static-table", uri), metadata, uri, files, NoopCatalog("static-table"))


def manifests_of(files: FileIO, snapshot: Snapshot) -> list[ManifestFile]:
    """The manifests that a snapshot names. (`Snapshot.manifests` keeps those of a path from any table before.)"""
    from pyiceberg.manifest import read_manifest_list

    return list(read_manifest_list(_checked(files, snapshot.manifest_list)))


def live_entries(files: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    """The live entries of a manifest. Raises NotReadableError where it has fewer than its list says."""
    checked: Any = _Checked(files)
    entries = manifest.fetch_manifest_entry(checked, discard_deleted=True)
    counts = manifest.added_files_count, manifest.existing_files_count
    if None not in counts and len(entries) < sum(count for count in counts if count is not None):
        raise NotReadableError(
            f"{manifest.manifest_path}: {len(entries)} live files, where the list of manifests says {sum(counts)}; the "
            "manifest is damaged"
        )
    return entries


def open_checked(files: FileIO, path: str) -> Any:
    """An open file of the log that is no Avro."""
    _check_file(path)
    return files.new_input(path).open()


class _Checked:
    """What `pyiceberg` asks of a FileIO to read an Avro file."""

    def __init__(self, files: FileIO):
        self._files = files

    def new_input(self, path: str) -> Any:
        return _checked(self._files, path)


class _Input:
    """What `pyiceberg` asks of an InputFile to read it; its bytes were checked."""

    def __init__(self, path: str, data: bytes):
        self.location, self._data = path, data

    def open(self, seekable: bool = True) -> io.BytesIO:
        return io.BytesIO(self._data)


def _checked(files: FileIO, path: str) -> Any:
    _check_file(path)
    source = files.new_input(path)
    if len(source) > _FILE_BYTES_MAX:
        raise NotReadableError(f"{path}: {len(source):,} bytes, more than a file of an Iceberg log may have")
    with source.open() as file:
        data = file.read()
    try:
        check_avro(data)
    except (ValueError, LookupError, TypeError, zlib.error, OSError, EOFError) as error:
        raise NotReadableError(f"{path}: no whole Avro file ({error})") from error
    return _Input(path, data)


def _check_file(path: str) -> None:
    """Raises NotReadableError for what lies on the local disk and is no regular file: a FIFO would be waited for, and a
    device has no end."""
    local = path.removeprefix("file://") if path.startswith("file://") else path.removeprefix("file:")
    if "://" in local:
        return
    status = os.stat(local)
    if not stat.S_ISREG(status.st_mode):
        raise NotReadableError(f"{path}: is no regular file, but a folder or a device")
    if status.st_size > _FILE_BYTES_MAX:
        raise NotReadableError(f"{path}: {status.st_size:,} bytes, more than a file of an Iceberg log may have")


# -- Avro -------------------------------------------------------------------------------------------------------------


def check_avro(data: bytes) -> None:
    """Raises ValueError, and what the standard library's decoders raise, for an Avro file that is not whole, or costs
    more to read than its size says."""
    if data[:4] != _MAGIC:
        raise ValueError("it does not begin as Avro does")
    metadata, offset = _header(data, 4)
    schema = json.loads(metadata[b"avro.schema"])
    _check_items(schema, {}, 0)
    codec = metadata.get(b"avro.codec", b"null").decode("ascii", "replace")
    sync, offset = data[offset : offset + _SYNC_BYTES], offset + _SYNC_BYTES
    inflated_max = max(_INFLATED_MIN, _INFLATED_RATIO_MAX * len(data))
    while offset < len(data):
        count, offset = _long(data, offset)
        length, offset = _long(data, offset)
        if count <= 0 or length < 0 or offset + length + _SYNC_BYTES > len(data):
            raise ValueError(f"a block says that it has {count:,} records in {length:,} bytes")
        inflated = _inflated_bytes(codec, data[offset : offset + length], inflated_max)
        inflated_max -= inflated
        if inflated_max < 0:
            raise ValueError("it inflates to much more than its size")
        if count > inflated:
            raise ValueError(f"a block says that it has {count:,} records in {inflated:,} bytes")
        offset += length
        if data[offset : offset + _SYNC_BYTES] != sync:
            raise ValueError("a block does not end with the file's mark")
        offset += _SYNC_BYTES


def _header(data: bytes, offset: int) -> tuple[dict[bytes, bytes], int]:
    metadata: dict[bytes, bytes] = {}
    count, offset = _long(data, offset)
    while count:
        if count < 0:
            _, offset = _long(data, offset)
        for _ in range(min(abs(count), len(data))):
            key, offset = _bytes(data, offset)
            metadata[key], offset = _bytes(data, offset)
        count, offset = _long(data, offset)
    return metadata, offset


def _bytes(data: bytes, offset: int) -> tuple[bytes, int]:
    length, offset = _long(data, offset)
    if not 0 <= length <= len(data) - offset:
        raise ValueError(f"{length:,} bytes are said to lie at {offset:,}")
    return data[offset : offset + length], offset + length


def _long(data: bytes, offset: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return (value >> 1) ^ -(value & 1), offset
    raise ValueError(f"no number at {offset:,}")


def _inflated_bytes(codec: str, block: bytes, most: int) -> int:
    """How many bytes a block has when it is inflated; beyond `most` the number need not be exact."""
    if codec == "deflate":
        return len(zlib.decompressobj(-zlib.MAX_WBITS).decompress(block, most + 1))
    if codec == "bzip2":
        return len(bz2.BZ2Decompressor().decompress(block, most + 1))
    if codec == "snappy":
        value = 0
        for shift, byte in zip(range(0, 35, 7), block, strict=False):
            value |= (byte & 127) << shift
            if byte < 128:
                break
        return value
    if codec == "zstandard":
        import zstandard

        with zstandard.ZstdDecompressor().stream_reader(block, read_across_frames=True) as stream:
            return len(stream.read(most + 1))
    return len(block)


def _check_items(schema: Any, named: dict[str, Any], depth: int) -> None:
    """Raises ValueError for an array or a map of values without a length, of which any number takes no bytes, and for a
    schema nested deeper than any of Iceberg's."""
    if depth > _DEPTH_MAX:
        raise ValueError("its schema is nested too deep")
    if isinstance(schema, list):
        for one in schema:
            _check_items(one, named, depth + 1)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("name"), str):
        named[schema["name"]] = schema
    for key in ("items", "values"):
        if key in schema:
            if _is_empty(schema[key], named, depth):
                raise ValueError("its schema has a list of values without a length")
            _check_items(schema[key], named, depth + 1)
    for field in schema.get("fields") or ():
        _check_items(field.get("type"), named, depth + 1)
    if isinstance(schema.get("type"), (dict, list)):
        _check_items(schema["type"], named, depth + 1)


def _is_empty(schema: Any, named: dict[str, Any], depth: int) -> bool:
    """Whether a value of a type may take no bytes."""
    if depth > _DEPTH_MAX:
        raise ValueError("its schema is nested too deep")
    if isinstance(schema, str):
        return schema == "null" or (schema in named and _is_empty(named[schema], named, depth + 1))
    if not isinstance(schema, dict):
        return False  # a union says which of its types follows
    kind = schema.get("type")
    if kind == "record":
        return all(_is_empty(field.get("type"), named, depth + 1) for field in schema.get("fields") or ())
    if kind == "fixed":
        return schema.get("size") == 0
    return _is_empty(kind, named, depth + 1) if kind not in ("array", "map", "enum") else False
