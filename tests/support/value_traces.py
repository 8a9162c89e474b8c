"""Where a value can still be read: in the files of an index and of a table's folder, whatever they are packed in.

traces(root, *values)   the files below a folder that contain one of some texts, each with where it is in it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
from skipstone.hfile_like import SortedFileReader


def traces(root: Path, *values: str) -> list[str]:
    """Looks at names of files and folders, at raw bytes (keys of runs are hexadecimal in versions), at all that sorted-
    block files contain, decoded, and at rows and footers of Parquet."""
    needles = [form for value in values for form in (value.encode(), value.encode().hex().encode())]
    found = []
    for path in sorted(root.rglob("*")):
        for place, data in ((str(path.relative_to(root)), str(path.relative_to(root)).encode()), *_parts(path)):
            found += [f"{path.relative_to(root)}: {place}" for needle in needles if needle in data]
    return found


def _parts(path: Path) -> Iterator[tuple[str, bytes]]:
    if not path.is_file():
        return
    yield "bytes", path.read_bytes()
    if path.suffix == ".sbf":
        yield from _of_sorted_file(path)
    elif path.suffix == ".parquet":
        yield from _of_parquet(path)


def _of_sorted_file(path: Path) -> Iterator[tuple[str, bytes]]:
    with SortedFileReader(path) as reader:
        entries = reader.scan_table(include_deleted=True)
        yield "keys", b"\0".join(entries.column("key").to_pylist())
        for name in entries.column_names[1:]:
            yield f"column {name}", _joined(entries.column(name).to_pylist())
        for name in reader.metas():
            yield f"meta {name}", reader.meta(name)
        yield "names", _joined([*reader.groups(), *reader.metas(), *reader.row_tables()])
        yield "block keys", b"\0".join(key for block in reader.blocks() for key in (block.first_key, block.last_key))
        for name, zone_map in reader.zone_maps().items():
            if zone_map is not None:
                yield f"zone map of {name}", _joined(zone_map.rows())


def _of_parquet(path: Path) -> Iterator[tuple[str, bytes]]:
    with pq.ParquetFile(path) as file:
        yield "rows", _joined(file.read().to_pylist())
        yield "footer", str(file.metadata.to_dict()).encode()


def _joined(values: Iterable[object]) -> bytes:
    return b"\0".join(value if isinstance(value, bytes) else str(value).encode() for value in values)
