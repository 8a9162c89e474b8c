"""Writing runs: rows of ascending keys in, immutable sorted-block files out; large ones as shards by key range."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, null_column, to_numpy
from ...hfile_like import SortedFileWriter, WriterOptions, prefix_changes
from ..storage import Storage
from . import Run

SHARD_BYTES = 64 << 20
Rows = tuple[pa.Array, pa.Table, np.ndarray]  # keys, values, tombstones: in any order
_ROWS_AT_ONCE = 1 << 17


@dataclass(frozen=True)
class Form:
    """How runs of one kind are written.

    block_bytes        of a block, before encoding
    summaries          columns whose range each block tells in the footer
    shard_bytes        a run that grows beyond is cut in shards of about this size
    compact            columns of integers that should take few bytes rather than be quick to read
    cut_prefix_bytes   a block, and a shard that is half full, ends where so many first bytes of the key change
    """

    block_bytes: int
    summaries: tuple[str, ...] = ()
    shard_bytes: int = SHARD_BYTES
    cut_prefix_bytes: int = 0
    compact: tuple[str, ...] = ()

    def options(self) -> WriterOptions:
        """For the writer of one run. Nothing is left to choose by a sample: with these block sizes it chose this for
        runs of every kind, and took 4% of the time of writing."""
        return {
            "block_size": self.block_bytes,
            "compression": "zstd",
            "summaries": self.summaries,
            "cut_prefix_bytes": self.cut_prefix_bytes,
            "compact": self.compact,
        }


def widened(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with every field of a schema, null where they have none."""
    columns = [
        rows.column(f.name).cast(f.type) if f.name in rows.column_names else null_column(rows.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def run_path(transaction: str, name: str) -> str:
    """Where a run lies; folders by the transaction's first letters keep each of a bounded size."""
    return f"runs/{transaction[:2]}/{transaction}-{name}.sbf"


def write_runs(
    storage: Storage, path_of: Callable[[int], str], rows: Rows, segments: tuple[int, int], *, form: Form
) -> tuple[Run, ...]:
    """Writes rows as one run or more: shards, at the paths that `path_of(0)`, `path_of(1)` ... give. Each is durable
    and whole on return; on an exception the one being written is absent."""
    keys, values, deleted = _sorted(rows)
    if not len(keys):
        return ()
    runs: list[Run] = []
    start = 0
    cuts = [*prefix_changes(keys, form.cut_prefix_bytes), len(keys)]
    while start < len(keys):
        path = path_of(len(runs))
        first = start
        with (
            storage.create(path) as sink,
            SortedFileWriter(sink, schema=values.schema, **form.options()) as writer,
        ):
            while start < len(keys) and (start == first or writer.size_bytes < form.shard_bytes):
                stop = min(start + _ROWS_AT_ONCE, len(keys))
                if writer.size_bytes >= form.shard_bytes // 2:
                    if start > first and start in cuts:
                        break
                    stop = min(stop, *(cut for cut in cuts if cut > start))
                gone = from_numpy(deleted[start:stop])
                writer.write(keys[start:stop], values.slice(start, stop - start), gone)
                start = stop
            writer.close()
            ends = keys[first].as_py().hex(), keys[start - 1].as_py().hex()
            runs.append(Run(path, writer.size_bytes, writer.num_entries, segments, *ends))
    return tuple(runs)


def encoded_run(rows: Rows, form: Form) -> bytes:
    """Rows as the bytes of one run, of no shards: to be merged with others."""
    keys, values, deleted = _sorted(rows)
    sink = io.BytesIO()
    with SortedFileWriter(sink, schema=values.schema, **form.options()) as writer:
        writer.write(keys, values, from_numpy(deleted))
    return sink.getvalue()


def _sorted(rows: Rows) -> Rows:
    keys, values, deleted = rows
    if len(keys) < 2 or pc.all(pc.less(keys[:-1], keys[1:])).as_py():
        return rows
    order = pc.array_sort_indices(keys)
    return keys.take(order), values.take(order), deleted[to_numpy(order)]
