"""What executors do for `lookup` (see `key_lookup`).

    keys -> (file, row) by the secondary index -> dealt out by file -> the rows
    keys -> encoded,  rows of files that the index does not cover -> encoded: a join for Spark

Each task opens the table at the version that the driver pinned; a task without rows opens nothing. Keys and rows are
compared in one form everywhere, the index's own, so it does not matter which files the index covers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from ..base.arrays import from_numpy, to_numpy
from ..base.ordered_keys import OrderedCode
from ..engine.indexes.probe_results import Positions
from ..engine.indexes.row_index import reader_of
from ..engine.parquet.leaves import leaf_array, leaf_types
from ..engine.scan.file_tasks import ReadContext
from ..engine.scan.keys import KeySet, key_set
from ..engine.scan.lookup import RowsAt
from ..engine.scan.plan import Plan
from ..engine.scan.request import ScanRequest
from ..engine.state import IndexState
from ..engine.state.runs import DamagedRun
from ..engine.table import Table
from ..errors import CorruptionError
from .jobs import Batches, parts_in
from .options import Request
from .shares import rows_of_shares
from .wire_types import wire_batches

HITS = pa.schema([pa.field("file", pa.int64()), pa.field("row", pa.int64())])
_KEYS_AT_ONCE = 1 << 20
_ROWS_AT_ONCE = 1 << 20
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class ShippedLookup:
    """A look-up, as executors receive it. Picklable, and small.

    request    the version
    names      the columns of the key; the first columns of the index's key first
    leading    how many of them those are
    index      its number; None without an index
    columns    what is read of the rows
    key        the name of one more column, with the encoded key of each row; None where it is not needed
    wire       the wire types of the columns, with that one
    """

    request: Request
    names: tuple[str, ...]
    leading: int
    index: int | None
    columns: tuple[str, ...]
    key: str | None
    wire: pa.Schema

    def index_of(self, table: Table) -> IndexState:
        return next(index for index in table.handle.snapshot.instant.indexes if index.id == self.index)

    def keys_of(self, batches: Sequence[pa.RecordBatch], schema: pa.Schema, count: int) -> KeySet:
        """The keys in batches with a column for each of the first `count` names, of a table of such a schema."""
        leaves, names = leaf_types(schema), list(self.names[:count])
        given = pa.Table.from_batches(batches).select(range(count)).rename_columns(names)
        return key_set(given, [leaves[name] for name in names])


def find_rows(lookup: ShippedLookup, batches: Batches) -> Batches:
    """Keys, a column for each name, to the rows that hold them, by the index: batches of HITS."""
    chunks = _chunks(batches, _KEYS_AT_ONCE)
    first = next(chunks, None)
    if first is None:
        return
    with lookup.request.open() as table:
        reader = reader_of(table.handle.snapshot, lookup.index_of(table))
        for chunk in chain([first], chunks):
            keys = lookup.keys_of(chunk, table.schema, lookup.leading)
            try:
                for _, positions in reader.join(keys.encoded):
                    yield from _hits(positions)
            except DamagedRun as error:  # only the driver could read its files in another way
                raise CorruptionError(
                    f"the secondary index over {', '.join(lookup.names)} cannot be read ({error}); drop_index() it, "
                    "and create it again",
                    path=error.run.path,
                    check="index",
                ) from error


def _hits(positions: Positions) -> Batches:
    for start in range(0, len(positions.rows), _BATCH_ROWS):
        part = slice(start, start + _BATCH_ROWS)
        columns = [from_numpy(positions.file_ids[part].view(np.int64)), from_numpy(positions.rows[part])]
        yield pa.RecordBatch.from_arrays(columns, schema=HITS)


def read_rows(lookup: ShippedLookup, batches: Batches) -> Batches:
    """Batches of HITS, ascending, to the rows themselves."""
    chunks = _chunks(batches, _ROWS_AT_ONCE)
    first = next(chunks, None)
    if first is None:
        return
    last = None
    with lookup.request.open() as table:
        for chunk in chain([first], chunks):
            hits = pa.Table.from_batches(chunk)
            files, rows = (to_numpy(hits.column(name)) for name in HITS.names)
            if last == (files[0], rows[0]):  # a row is read once, though its two hits may fall into two chunks
                files, rows = files[1:], rows[1:]
            if not len(files):
                continue
            last = files[-1], rows[-1]
            positions = Positions(files.view(np.uint64), np.zeros(len(files), dtype=np.int32), rows)
            plan = Plan(RowsAt(positions, lookup.index_of(table), ScanRequest.of(table.handle, lookup.columns)))
            for batch in plan.to_batches():
                yield from _to_wire(lookup, pa.Table.from_batches([batch]), table.schema, table.location)


def read_uncovered(lookup: ShippedLookup, context: ReadContext, batches: Batches) -> Batches:
    """Parts, lists of shares, to the rows of their files."""
    for _, shares in parts_in(batches):
        for path, rows in rows_of_shares(context, shares):
            yield from _to_wire(lookup, rows, context.schema, path)


def encode_keys(lookup: ShippedLookup, schema: pa.Schema, batches: Batches) -> Batches:
    """Keys, a column for each name, to one column of encoded keys, without those that no row can hold."""
    for chunk in _chunks(batches, _KEYS_AT_ONCE):
        encoded = lookup.keys_of(chunk, schema, len(lookup.names)).encoded
        for start in range(0, len(encoded), _BATCH_ROWS):
            part = pa.concat_arrays([encoded.slice(start, _BATCH_ROWS)])
            yield pa.RecordBatch.from_arrays([part.cast(pa.binary())], names=["key"])


def _to_wire(lookup: ShippedLookup, rows: pa.Table, schema: pa.Schema, path: str) -> Batches:
    """Rows in the wire types, with their encoded keys where `lookup.key` asks for them."""
    if lookup.key is not None:
        leaves = leaf_types(schema)
        code = OrderedCode([leaves[name] for name in lookup.names])
        encoded = code.encode([leaf_array(rows, name) for name in lookup.names])
        rows = rows.append_column(lookup.key, encoded.cast(pa.binary()))
    yield from wire_batches(rows, lookup.wire, path)


def _chunks(batches: Iterable[pa.RecordBatch], rows_max: int) -> Iterator[list[pa.RecordBatch]]:
    """The batches that hold rows, in lists of about `rows_max` rows."""
    chunk: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        chunk.append(batch)
        count += batch.num_rows
        if count >= rows_max:
            yield chunk
            chunk, count = [], 0
    if chunk:
        yield chunk
