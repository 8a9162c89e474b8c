"""Where the filters of one column in one file are: a member per row group, so that one row answers for all of them.

The row groups of a file whose filters are of very unlike sizes lie in several strided sections, one a size: a row group
with a thousand times the values of the others does not stretch theirs. A look-up then reads one row of each.

As a row of an index (`FIELDS`): the first section, and of the others, as bytes: how many u8, of each its offset, rows
and stride u64, and for each row group which of all the sections holds it u8; null where there is one section.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ....bloom import Probes, bucket_of, probe_rows, probes_for
from ....bloom.hashing import BLOCKS_MAX, PARQUET_PREFIX
from ....errors import CorruptionError, InvalidArgumentError
from ....hfile_like import StridedSection, read_strided_rows
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


def hash_probes(values: pa.Array, name: str) -> Probes | None:
    """The probes of a filter of that hash, for values without nulls; None if it cannot decide."""
    if name.startswith(PARQUET_PREFIX):  # Parquet's hashes depend on how a file stores its values
        return None
    try:
        return probes_for(values, name)
    except InvalidArgumentError:  # values of a kind that it does not hold
        return None


@dataclass(frozen=True)
class FileFilter:
    """Small and picklable: all that an executor needs to probe it.

    sections     one for each size
    hash_name    what was hashed: the `canon.hash_name` of the type that the file was indexed in
    section_of   which section holds each row group, a byte each; None where there is one
    """

    sections: tuple[StridedSection, ...]
    hash_name: str
    section_of: bytes | None = None

    @property
    def row_groups(self) -> int:
        """The number of row groups."""
        return self.sections[0].stride // _BLOCK_BYTES if self.section_of is None else len(self.section_of)

    def row(self) -> dict[str, Any]:
        """The values of `FIELDS`."""
        first, *others = self.sections
        more = None
        if self.section_of is not None:
            places = np.array([(s.offset, s.rows, s.stride) for s in others], dtype="<u8")
            more = bytes([len(others)]) + places.tobytes() + self.section_of
        return {
            "fine_offset": first.offset,
            "fine_rows": first.rows,
            "fine_stride": first.stride,
            "fine_more": more,
            "hash": self.hash_name,
        }

    @classmethod
    def of_row(cls, row: dict[str, Any], path: str) -> FileFilter | None:
        """The filter of a row of FIELDS; None if the file has none. `path` is the index file's. Raises
        CorruptionError."""
        place = row["fine_offset"], row["fine_rows"], row["fine_stride"]
        if place == (None, None, None) and row["fine_more"] is None and row["hash"] is not None:
            return None
        is_place = None not in place and place[0] >= 0 and 1 <= place[1] <= BLOCKS_MAX
        if not is_place or row["hash"] is None or not 1 <= place[2] <= STRIDE_BYTES_MAX or place[2] % _BLOCK_BYTES:
            raise CorruptionError("the place of a fine filter is none", path=path, check="fine filter")
        first = StridedSection("fine", *place)
        more = row["fine_more"]
        if more is None:
            return cls((first,), row["hash"])
        count = more[0] if more else 0
        stored, section_of = more[1 : 1 + 24 * count], more[1 + 24 * count :]
        if not count or len(stored) != 24 * count or not section_of or max(section_of) > count:
            raise CorruptionError("the sections of a fine filter are malformed", path=path, check="fine filter")
        places = np.frombuffer(stored, dtype="<u8").reshape(-1, 3).tolist()
        others = tuple(StridedSection("fine", *place) for place in places)
        counts = np.bincount(np.frombuffer(section_of, dtype=np.uint8), minlength=count + 1)
        fits = [s.stride for s in (first, *others)] == (counts * _BLOCK_BYTES).tolist()
        if not fits or not all(1 <= s.rows <= BLOCKS_MAX for s in others):
            raise CorruptionError("sections of a fine filter hold other row groups", path=path, check="fine filter")
        return cls((first, *others), row["hash"], section_of)

    def probe(self, storage: Storage, path: str, hashes: np.ndarray) -> np.ndarray:
        """bool [hash, row group]: the row group may hold the value. One small read a value and section, no footer."""
        source = Ranged(storage, path)
        members = np.frombuffer(self.section_of or bytes(self.row_groups), dtype=np.uint8)
        hits = np.empty((len(hashes), self.row_groups), dtype=bool)
        for number, section in enumerate(self.sections):
            rows = read_strided_rows(source, section, bucket_of(hashes, section.rows))
            hits[:, members == number] = probe_rows(rows, hashes)
        return hits


@dataclass(frozen=True)
class StoredFilters:
    """Where the filters of a file are in a task index file.

    fine        of its row groups; None if the filter over the file is all there is
    over_file   a row per block; None if there is none
    """

    hash_name: str
    fine: FileFilter | None
    over_file: StridedSection | None


def fields_of(fine: FileFilter | None, hash_name: str) -> dict[str, Any]:
    """The values of `FIELDS`."""
    return fine.row() if fine is not None else {**dict.fromkeys(field.name for field in FIELDS), "hash": hash_name}


def write_file_filter(writer: SortedFileWriter, name: str, filters: FileFilters, hash_name: str) -> FileFilter | None:
    """Stores the filters of a file's row groups as strided sections `name`, `name/1`, ...; None if there are none."""
    sections = []
    section_of = np.zeros(filters.row_groups, dtype=np.uint8)
    for number, (blocks, members) in enumerate(filters.parts):
        section_of[members] = number
        rows = filters.rows_of(blocks, members)
        own_name = f"{name}/{number}" if number else name
        sections.append(writer.write_strided(own_name, rows, len(members) * _BLOCK_BYTES))
    if not sections:
        return None
    return FileFilter(tuple(sections), hash_name, section_of.tobytes() if len(sections) > 1 else None)
