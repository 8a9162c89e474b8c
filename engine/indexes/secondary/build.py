"""Build a secondary index over existing files, from their key columns and included columns, in bounded memory."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ....base.arrays import combine
from ....base.ordered_keys import OrderedCode, ordered_class
from ....errors import SchemaError
from ...parquet.exact_cast import cast_exactly
from ...parquet.leaves import plain_type
from ...predicates.coerce import is_list
from ...state import Run
from ...state.lsm import write_runs
from ...state.run_format import SHARD_BYTES, RunFormat
from ...storage import Storage
from ..column_reader import ColumnReader, each_file, file_rows
from .format import PLAIN, EntryLayout, GroupValues
from .sort import MEMORY_BYTES, ValueSorter

if TYPE_CHECKING:
    from ..kind import BuildContext

_MEMORY_MAX, _MEMORY_SHARE = 1 << 30, 16
_TASK_ROWS = 1 << 19  # a larger file is read in parts, because several are read at a time, each whole


def build_runs(
    reader: ColumnReader,
    kinds: Sequence[pa.DataType],
    index_storage: Storage,
    files: pa.Table,
    path_of: Callable[[int], str],
    segments: tuple[int, int],
    form: RunFormat,
    job: BuildContext,
    *,
    name: str = "secondary",
    memory_bytes: int = MEMORY_BYTES,
    layout: EntryLayout = PLAIN,
) -> tuple[tuple[Run, ...], list[int]]:
    """Build one run over base files, in shards. Return it, and the ids of files that could not be read.

    reader     of the columns of the key, then of the included columns
    kinds      the types as which the columns of the key are encoded
    files      rows of the manifest
    path_of    returns the path of a shard
    name       of the step, for progress
    """
    with ValueSorter(OrderedCode(kinds), memory_bytes, layout=layout) as sorter:

        def take(_: int, groups: list[GroupValues]) -> None:
            for group in groups:
                sorter.add_group(group)

        read = partial(_keys_of, reader, kinds, sorter)
        holes, _ = each_file(_parts(files), replace(job, publish_s=math.inf), name, read, take)
        runs = write_runs(
            index_storage, path_of, sorter.sorted_ranges(holes, form.shard_bytes or SHARD_BYTES), segments, form
        )
    return runs, holes


def machine_memory_bytes() -> int:
    """Return the bytes of this machine's memory that entries may use before they are written to disk."""
    limits = [0]
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not every system reports it
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))  # of a container
    return max(MEMORY_BYTES, min(_MEMORY_MAX, min(limits) // _MEMORY_SHARE))


def _parts(files: pa.Table) -> list[dict[str, Any]]:
    """Return rows of files with the row groups to read at a time: `groups`, a slice without end for the last one,
    because the manifest may count too few row groups."""
    parts = []
    for row in file_rows(files):
        count, rows = row["row_groups"] or 1, row["row_count"] or 0
        at_once = max(1, count * _TASK_ROWS // max(rows, 1))
        for first in range(0, count, at_once):
            stop = first + at_once
            parts.append({**row, "groups": slice(first, stop if stop < count else None)})
    return parts


def _keys_of(
    reader: ColumnReader, kinds: Sequence[pa.DataType], sorter: ValueSorter, part: dict[str, Any]
) -> list[GroupValues]:
    """Return the values of each row group of a part."""
    groups: list[GroupValues] = []
    with reader.open(part) as file:
        counts = file.row_counts
        for group in range(len(counts))[part["groups"]]:
            values = file.read(group)
            typed = [_as_kind(one, kind, part["path"]) for one, kind in zip(values, kinds, strict=False)]
            columns = [*typed, *values[len(kinds) :]]
            groups.append(sorter.encode(part["file_id"], group, sum(counts[:group]), columns))
    return groups


def _as_kind(values: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Return the values in a type of their encoding's class. Raise SchemaError if a value would change."""
    own = values.type.value_type if is_list(values.type) else values.type
    if ordered_class(plain_type(own)) == ordered_class(kind):
        return values
    if is_list(values.type):
        raise SchemaError(f"{path}: elements of type {own} are not indexed as {kind}")
    try:
        return combine(cast_exactly(pa.chunked_array([values]), pa.field(path, kind)))
    except SchemaError as error:
        raise SchemaError(f"{path}: {error}") from None
