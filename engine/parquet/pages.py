"""Few rows of a Parquet file by position, reading and decoding only the pages that hold them.

pyarrow decompresses whole column chunks. So it is given another file, made in memory: of each chunk the dictionary page
and the pages of the wanted rows, as they are, behind a footer that names nothing else (`synthetic_file`). Where a page
begins is in the header of the one before (`page_headers`). The footer says that the rows end with the last that is
wanted, and decoding ends there, too. Rows of a row group are of one number, but columns have pages of unlike rows:
those whose kept pages hold the same rows make a file together.

Where many rows would be decoded for a few, those pages are cut to the few first (`page_rows`).

Columns that are lists, maps, structs or encrypted, or hold anything not known here, are left to others. Every value is
decoded by pyarrow, from the bytes and the types that the file has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...arrays import from_numpy
from .footers import READ_OPTIONS, prefetch

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from .page_headers import Pages, ReadAt
    from .synthetic_file import PageGroup

BATCH_ROWS = 4096
_SLICED_ROWS_MAX = 16
_CUT_ROWS_MIN = 1 << 15  # fewer rows are decoded sooner than pages are cut to the wanted ones
_CUT_DICTIONARY_BYTES_MIN = 1 << 16  # as they lie: smaller ones are
_NS_A_BYTE = 1.0  # what decompression takes, and decoding by kind: measured, and only their ratios matter
_NS_A_VALUE = {"bytes": 15, "other": 4}
_DICTIONARY_BYTES_A_VALUE = 2  # chunks of strings below that are dictionary codes throughout


def sought(
    file: pq.ParquetFile, group: int, columns: list[str], wanted: np.ndarray, *, use_threads: bool
) -> list[pa.RecordBatch]:
    """The wanted rows (ascending positions, at least one) of some columns of a row group; `use_threads`: Arrow's."""
    prefetch(file, group, columns)
    return picked(file, group, columns, wanted, use_threads=use_threads)


def picked(
    file: pq.ParquetFile, group: int, columns: list[str] | None, wanted: np.ndarray, *, use_threads: bool = False
) -> list[pa.RecordBatch]:
    """`sought`, of a file that is in memory."""
    parts: list[pa.RecordBatch] = []
    start = 0
    # A batch that is let go gives its memory to the next; fresh memory costs more than decoding.
    for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns, use_threads=use_threads):
        first, end = np.searchsorted(wanted, (start, start + batch.num_rows))
        if first < end:
            parts += _copied(batch, wanted[first:end] - start)
        start += batch.num_rows
        if start > wanted[-1]:
            break
    return parts


def _copied(batch: pa.RecordBatch, rows: np.ndarray) -> list[pa.RecordBatch]:
    """Some rows of a batch, in memory of their own where that can be: the batch may go."""
    views = [i for i, kind in enumerate(batch.schema.types) if _is_view(kind)]
    try:
        if not views:
            return [batch.take(from_numpy(rows))]
        columns = batch.columns
        others = [i for i in range(len(columns)) if i not in views]
        copies = dict(zip(views, (_text_of(columns[i], rows) for i in views), strict=True))
        if others:
            copies.update(zip(others, batch.select(others).take(from_numpy(rows)).columns, strict=True))
        return [pa.RecordBatch.from_arrays([copies[i] for i in range(len(columns))], names=batch.schema.names)]
    except pa.ArrowNotImplementedError:  # structs of views have no take either
        return [batch.slice(row, 1) for row in rows.tolist()]


def _is_view(kind: pa.DataType) -> bool:
    return pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_string_view(kind) else pa.binary()


def _text_of(column: pa.Array, rows: np.ndarray) -> pa.Array:
    """Some rows of a column of views, which have no take."""
    plain = _plain(column.type)
    if len(rows) > _SLICED_ROWS_MAX:
        return column.cast(plain).take(from_numpy(rows))
    return pa.concat_arrays([column.slice(row, 1).cast(plain) for row in rows.tolist()])


def dealt(costs: dict[str, float]) -> tuple[list[str], list[str]]:
    """Columns for two readers of about equal cost."""
    parts: tuple[list[str], list[str]] = ([], [])
    totals = [0.0, 0.0]
    for name in sorted(costs, key=lambda n: -costs[n]):
        lighter = int(totals[1] < totals[0])
        parts[lighter].append(name)
        totals[lighter] += costs[name]
    return parts


def cost_ns(chunk: Any) -> float:
    """Roughly what a column chunk takes to decode, in nanoseconds."""
    each = _NS_A_VALUE["bytes" if chunk.physical_type == "BYTE_ARRAY" and not is_coded(chunk) else "other"]
    return chunk.num_values * each + chunk.total_uncompressed_size * _NS_A_BYTE


def is_coded(chunk: Any) -> bool:
    """True for a chunk of strings that holds dictionary codes and nothing else: those are cheaper left as codes."""
    is_small = chunk.total_uncompressed_size < _DICTIONARY_BYTES_A_VALUE * chunk.num_values
    return chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page and is_small


def dictionaries_by_snappy_bytes(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> int:
    """How many bytes the dictionaries of some top-level columns take in a row group, of those that Snappy compressed:
    compiled code decompresses them as far as they are needed."""
    row_group, wanted = file.metadata.row_group(group), set(columns)
    chunks = [row_group.column(i) for i in range(row_group.num_columns)]
    return sum(
        chunk.data_page_offset - chunk.dictionary_page_offset
        for chunk in chunks
        if chunk.path_in_schema in wanted
        and chunk.compression == "SNAPPY"
        and chunk.has_dictionary_page
        and 0 < chunk.dictionary_page_offset < chunk.data_page_offset
    )


def coded_columns(file: pq.ParquetFile, group: int, columns: Sequence[str]) -> list[str]:
    """Those of some top-level columns of strings that a row group holds as dictionary codes."""
    row_group, wanted = file.metadata.row_group(group), set(columns)
    chunks = (row_group.column(i) for i in range(row_group.num_columns))
    return [chunk.path_in_schema for chunk in chunks if chunk.path_in_schema in wanted and is_coded(chunk)]


def without_views(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column, of strings or bytes where it is of views of such, of which Arrow takes nothing."""
    return column.cast(_plain(column.type)) if _is_view(column.type) else column


def flat_columns(file: pq.ParquetFile, columns: Sequence[str]) -> list[str]:
    """Those of some top-level columns that can be read by page."""
    from .synthetic_file import TYPES

    schema, wanted = file.metadata.schema, set(columns)
    flat: dict[str, bool] = {}
    for i in range(len(schema)):
        leaf = schema.column(i)
        name = leaf.path.split(".", 1)[0]
        is_flat = leaf.path == leaf.name and leaf.max_repetition_level == 0 and leaf.physical_type in TYPES
        flat[name] = is_flat and name not in flat
    return [name for name in columns if name in wanted and flat.get(name, False)]


def rows_by_page(
    metadata: pq.FileMetaData,
    schema: pa.Schema,
    read_at: ReadAt,
    groups: Sequence[tuple[int, np.ndarray]],
    columns: Sequence[str],
) -> dict[str, pa.ChunkedArray]:
    """Some rows of `flat_columns`, by column.

    metadata   the file's footer
    schema     its columns' types
    read_at    reads the file's bytes
    groups     row group numbers, each with the positions in it that are wanted (ascending, unique, at least one)

    Strings may come as dictionaries. Raises PagesUnknownError where pyarrow is to read the file as it is.
    """
    from .page_headers import pages_of
    from .page_rows import is_served, only, values_of
    from .synthetic_file import PageGroup, synthetic_file

    leaves = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    selected: dict[str, pa.ChunkedArray] = {}
    same_pages: dict[tuple, PageGroup] = {}
    for name in columns:
        kept = [pages_of(metadata.row_group(g).column(leaves[name]), read_at, wanted) for g, wanted in groups]
        leaf, kind = metadata.schema.column(leaves[name]), schema.field(name).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        row_count, dictionary_bytes = sum(chunk.last for chunk in kept), sum(chunk.dictionary_bytes for chunk in kept)
        chunks: list[Pages] | None = None
        if row_count >= _CUT_ROWS_MIN or dictionary_bytes >= _CUT_DICTIONARY_BYTES_MIN:
            of_chunks = list(zip(kept, (wanted for _, wanted in groups), strict=True))
            if is_served(leaf, kind):
                values = [values_of(chunk, leaf, wanted) for chunk, wanted in of_chunks]
                if None not in values:
                    selected[name] = pa.chunked_array([one.array(kind) for one in values if one is not None], kind)
                    continue
            cut = [only(chunk, leaf, wanted) for chunk, wanted in of_chunks]
            chunks = None if None in cut else [chunk for chunk in cut if chunk is not None]
        if chunks is None:
            chunks = [chunk.as_they_are() for chunk in kept]
        # Whether they are cut, and where they begin: of cut ones, nothing more is to be chosen.
        alike = tuple((c.is_cut, () if c.is_cut else c.starts, c.last) for c in chunks)
        group = same_pages.setdefault(alike, PageGroup())
        group.columns.append(name)
        group.chunks.append(chunks)
    for group in same_pages.values():
        wanted = [_within(rows, chunk) for (_, rows), chunk in zip(groups, group.chunks[0], strict=True)]
        first = metadata.row_group(groups[0][0])
        coded = [name for name in group.columns if is_coded(first.column(leaves[name]))]
        synthetic = synthetic_file(metadata, [leaves[name] for name in group.columns], group)
        selected.update(_read(synthetic, wanted, coded))
    return selected


def _read(synthetic: bytes, wanted: list[np.ndarray], coded: list[str]) -> dict[str, pa.ChunkedArray]:
    """The wanted rows of a made file, by column; `wanted`: positions in each of its row groups."""
    import pyarrow.parquet as pq

    from .page_headers import PagesUnknownError

    parts: list[pa.RecordBatch] = []
    with pq.ParquetFile(pa.BufferReader(pa.py_buffer(synthetic)), read_dictionary=coded, **READ_OPTIONS) as file:
        for group, rows in enumerate(wanted):  # one by one: pages go on where a row group of ours has ended
            parts += picked(file, group, None, rows)
    if sum(part.num_rows for part in parts) != sum(map(len, wanted)):
        raise PagesUnknownError("pages do not hold the rows that their headers count")
    table = pa.Table.from_batches(parts)
    return {name: table.column(name) for name in table.column_names}


def _within(wanted: np.ndarray, chunk: Pages) -> np.ndarray:
    """Positions of wanted rows of a row group among those of its kept pages."""
    if chunk.is_cut:
        return np.arange(len(wanted))
    cuts, rows_before = [], 0
    for start, count in chunk.starts:
        first, end = np.searchsorted(wanted, (start, start + count))
        cuts.append(wanted[first:end] - start + rows_before)
        rows_before += count
    return np.concatenate(cuts)
