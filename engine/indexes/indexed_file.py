"""Reading a file that is in the table, to index it: what was read must be of the file that the manifest tells of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ...errors import StorageError
from ..parquet.footers import open_parquet
from ..storage import Entry, Storage

if TYPE_CHECKING:
    import pyarrow.parquet as pq


@contextlib.contextmanager
def open_indexed(storage: Storage, row: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[pq.ParquetFile]:
    """The file of a row of the manifest (path and identity), open as pyarrow opens it with `options`.

    Raises StorageError where another lies there, also where it came while the block read it: what an index told of that
    one would be believed of this.
    """
    with open_parquet(storage, _checked(storage, row), is_checked=False, **options) as file:
        yield file
        if file.remote is None:  # an object store tells with each read whose it is
            _checked(storage, row)


def _checked(storage: Storage, row: Mapping[str, Any]) -> Entry:
    entry = storage.stat(row["path"])
    if not entry.is_same(row["size_bytes"], row["modified_ns"], row["etag"]):
        raise StorageError(f"{row['path']}: overwritten since it was indexed; sync() the table")
    return entry
