"""The public interface to a file: look-ups, scans, and the content of the file. Only requested parts are decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa

from .block_reader import BlockReader, key_range, named
from .entries import column_positions, scan_schema
from .footer import GroupHandle, RowTable
from .id_scan import IdKeys
from .lookup import look_up
from .rows import read_rows_of_tables
from .scan import scan
from .source import COALESCE_GAP_BYTES

if TYPE_CHECKING:
    from .verify import Finding


class SortedFileReader(BlockReader):
    """Reads a sorted-block file.

    source              a path, bytes, or an object with `size` and `read_ranges` (see `source.Source`)
    footer_read_bytes   the size of the one read that opens a file

    Attributes: `name` (of the source, or None), `schema` (of the value columns), `footer`, `index`. Tombstones are not
    found and not returned, except with `include_deleted`. Raises NotATableError if there is no file, CorruptionError,
    FormatVersionError, StorageError.
    """

    # -- look-ups -----------------------------------------------------------------------------------------------------

    def get_many(
        self,
        keys: Sequence[bytes] | pa.Array | pa.ChunkedArray,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
    ) -> pa.Table:
        """Return one row per key, in the order given (repeats allowed): `key`, the value columns (null if the key does
        not exist) and `found`. With `include_deleted`, tombstones are found too, and `deleted` marks them."""
        self.check_open()
        return look_up(self, keys, self._positions(columns), include_deleted)

    # -- scans --------------------------------------------------------------------------------------------------------

    def scan(
        self,
        prefix: bytes | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        group: str | None = None,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Return batches of `key` and the value columns, in key order: keys that begin with `prefix`, from `start` on,
        before `stop`, of `group`; all that are given apply. With `include_deleted`, tombstones too and a column
        `deleted`."""
        self.check_open()
        positions = self._positions(columns)
        start, stop = key_range(prefix, start, stop)
        return scan(self, self.blocks_between(start, stop, group), start, stop, positions, include_deleted)

    def scan_table(
        self,
        prefix: bytes | None = None,
        *,
        start: bytes | None = None,
        stop: bytes | None = None,
        group: str | None = None,
        columns: Sequence[str] | None = None,
        include_deleted: bool = False,
    ) -> pa.Table:
        """Return the result of `scan` as one Table."""
        batches = self.scan(
            prefix, start=start, stop=stop, group=group, columns=columns, include_deleted=include_deleted
        )
        return pa.Table.from_batches(batches, scan_schema(self.schema, self._positions(columns), include_deleted))

    def keys(self, prefix: bytes | None = None) -> pa.ChunkedArray:
        """Return the keys (of a prefix), ascending, without tombstones."""
        return self.scan_table(prefix, columns=[]).column("key")

    def by_id(self, prefix: bytes) -> IdKeys:
        """Return the entries whose keys are `prefix` and an id, a big-endian number of 8 bytes. They are read as
        arrays."""
        return IdKeys(self, prefix)

    # -- the content of the file --------------------------------------------------------------------------------------

    def groups(self) -> dict[str, GroupHandle]:
        """Return the groups by name, in the order written."""
        return dict(self.footer.groups)

    def metas(self) -> list[str]:
        """Return the names of the metadata entries, in the order written."""
        return list(self.footer.metas)

    def row_tables(self) -> dict[str, RowTable]:
        """Return the row tables by name, in the order written."""
        return dict(self.footer.row_tables)

    def read_rows(
        self, wanted: Sequence[tuple[str, Sequence[int] | np.ndarray]], gap_bytes: int = COALESCE_GAP_BYTES
    ) -> list[np.ndarray]:
        """Return uint8 [k, stride] each: rows of some row tables, by name, in one request to the source. Rows no
        further apart than `gap_bytes` are one read. Raise InvalidArgumentError for a name or a row that does not
        exist."""
        self.check_open()
        requests = [(named("row table", name, self.footer.row_tables), rows) for name, rows in wanted]
        return read_rows_of_tables(self.source, requests, gap_bytes)

    def verify(self) -> list[Finding]:
        """Read and check everything: header, blocks, order, rows, metas. Return [] if the file is sound."""
        from .verify import findings_of

        return findings_of(self)

    def _positions(self, columns: Sequence[str] | None) -> list[int]:
        return column_positions(self.schema, columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
