"""The filters of one column in one file: one member per row group, so that one row answers for all of them.

If the filters of a file's row groups have very different sizes, they are in several row tables, one per size. So a row
group with a thousand times more values does not enlarge the others. A look-up then reads one row of each. The sections
belong to the file, or are groups of a run with the row groups of many files (`coarse_groups.py`).

As a row of an index (`FIELDS`): the first section, and bytes: the number of other sections u8; the offset, rows and
stride u64 of each; for each row group the number of its section u8; for each its position among the members there u32.
The bytes are null if one section contains exactly the row groups of this file, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ....bloom import Probes, bucket_of, probe_rows, probes_for
from ....bloom.hashing import BLOCKS_MAX, PARQUET_PREFIX
from ....errors import CorruptionError, InvalidArgumentError
from ....hfile_like import RowTable, read_rows
from ....hfile_like.footer import STRIDE_BYTES_MAX
from ...storage import Ranged, Storage

if TYPE_CHECKING:
    from ....hfile_like import SortedFileWriter
    from .task_filters import FileFilters


FIELDS = [
    pa.field("fine_offset", pa.int64()),
    pa.field("fine_rows", pa.int64()),
    pa.field("fine_stride", pa.int64()),
    pa.field("fine_more", pa.binary()),
    pa.field("hash", pa.string()),
]
_BLOCK_BYTES = 32
_AT_ONCE_BYTES = 8 << 20


def hash_probes(values: pa.Array, name: str) -> Probes | None:
    """Return the probes of a filter with this hash, for values without nulls; None if it cannot decide."""
    if name.startswith(PARQUET_PREFIX):  # Parquet's hashes depend on how a file stores its values
        return None
    try:
        return probes_for(values, name)
    except InvalidArgumentError:  # it cannot contain values of this kind
        return None


@dataclass(frozen=True)
class FileFilter:
    """The filter of one file. It is small and picklable, and contains all that an executor needs to probe it.

    sections     one per size
    hash_name    the `canon.hash_name` of the type in which the file was indexed
    places       (section, position among its members) of each row group; None for one section in the order of row
                 groups
    """

    sections: tuple[RowTable, ...]
    hash_name: str
    places: tuple[tuple[int, int], ...] | None = None

    @property
    def row_groups(self) -> int:
        """The number of row groups."""
        return self.sections[0].stride // _BLOCK_BYTES if self.places is None else len(self.places)

    @property
    def member_places(self) -> Sequence[tuple[int, int]]:
        """The (section, position among its members) of each row group."""
        return [(0, i) for i in range(self.row_groups)] if self.places is None else self.places

    def probes_for(self, values: pa.Array) -> Probes | None:
        """The probes of these filters, as `hash_probes` returns them."""
        return hash_probes(values, self.hash_name)

    def row(self) -> dict[str, Any]:
        """Return the values of `FIELDS`."""
        first, *others = self.sections
        more = None
        if self.places is not None:
            stored = np.array([(s.offset, s.rows, s.stride) for s in others], dtype="<u8")
            sections, columns = np.array(self.places, dtype=np.int64).reshape(-1, 2).T
            more = bytes([len(others)]) + stored.tobytes() + sections.astype("u1").tobytes()
            more += columns.astype("<u4").tobytes()
        return {
            "fine_offset": first.offset,
            "fine_rows": first.rows,
            "fine_stride": first.stride,
            "fine_more": more,
            "hash": self.hash_name,
        }

    @classmethod
    def of_row(cls, row: dict[str, Any], path: str) -> FileFilter | None:
        """Return the filter in a row of FIELDS; None if the file has none. `path` is the index file's. Raise
        CorruptionError."""
        place = row["fine_offset"], row["fine_rows"], row["fine_stride"]
        if place == (None, None, None) and row["fine_more"] is None and row["hash"] is not None:
            return None
        is_place = None not in place and place[0] >= 0 and 1 <= place[1] <= BLOCKS_MAX
        if not is_place or row["hash"] is None or not 1 <= place[2] <= STRIDE_BYTES_MAX or place[2] % _BLOCK_BYTES:
            raise CorruptionError("the place of a fine filter is none", path=path, check="fine filter")
        first = RowTable("fine", *place)
        more = row["fine_more"]
        if more is None:
            return cls((first,), row["hash"])
        count = more[0] if more else 0
        stored, rest = more[1 : 1 + 24 * count], more[1 + 24 * count :]
        groups, odd = divmod(len(rest), 5)
        if len(stored) != 24 * count or odd or not groups:
            raise CorruptionError("the sections of a fine filter are malformed", path=path, check="fine filter")
        others = tuple(RowTable("fine", *s) for s in np.frombuffer(stored, dtype="<u8").reshape(-1, 3).tolist())
        sections = (first, *others)
        numbers, columns = np.frombuffer(rest[:groups], "u1"), np.frombuffer(rest[groups:], "<u4")
        if not all(1 <= s.rows <= BLOCKS_MAX and 1 <= s.stride <= STRIDE_BYTES_MAX for s in others) or (
            (numbers > count).any()
            or (columns >= np.array([s.stride // _BLOCK_BYTES for s in sections])[np.minimum(numbers, count)]).any()
        ):
            raise CorruptionError("sections of a fine filter contain other row groups", path=path, check="fine filter")
        return cls(sections, row["hash"], tuple(zip(numbers.tolist(), columns.tolist(), strict=True)))

    def probe(self, storage: Storage, path: str, hashes: np.ndarray) -> np.ndarray:
        """Return the row groups that may contain each hash: bool [hash, row group]. One read per value and section."""
        source = Ranged(storage, path)
        number_of, column_of = np.array(self.member_places, dtype=np.int64).T
        hits = np.empty((len(hashes), self.row_groups), dtype=bool)
        for number, section in enumerate(self.sections):
            is_here = np.flatnonzero(number_of == number)
            if not len(is_here):
                continue
            at_once = max(1, _AT_ONCE_BYTES // section.stride)
            for start in range(0, len(hashes), at_once):
                part = slice(start, start + at_once)
                rows = read_rows(source, section, bucket_of(hashes[part], section.rows))
                own = np.ascontiguousarray(rows.reshape(len(rows), -1, _BLOCK_BYTES)[:, column_of[is_here]])
                hits[part, is_here] = probe_rows(own.reshape(len(rows), -1), hashes[part])
        return hits


def write_file_filter(writer: SortedFileWriter, name: str, filters: FileFilters, hash_name: str) -> FileFilter:
    """Write the filters of a file's row groups as row tables `name`, `name/1`, ..."""
    sections = []
    places = [(0, 0)] * filters.row_groups
    for number, (blocks, members) in enumerate(filters.parts):
        for column, group in enumerate(members):
            places[group] = number, column
        rows = filters.rows_of(blocks, members)
        own_name = f"{name}/{number}" if number else name
        sections.append(writer.write_rows(own_name, rows, len(members) * _BLOCK_BYTES))
    return FileFilter(tuple(sections), hash_name, tuple(places) if len(sections) > 1 else None)
