"""Entries that the caller lends the writer, and files without templates: the same blocks, and the same entries."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pyarrow as pa
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.hfile_like import SortedFileReader, SortedFileWriter

SCHEMA = pa.schema([("path", pa.string()), ("size", pa.int64()), ("none", pa.binary())])


def _file(parts: list[pa.Table], **options: object) -> bytes:
    copy = bool(options.pop("copy", True))
    sink = io.BytesIO()
    with SortedFileWriter(sink, schema=SCHEMA, **options) as writer:  # type: ignore[arg-type]
        for part in parts:
            deleted = np.array([size == 0 for size in part.column("size").to_pylist()], dtype=bool)
            writer.write(part.column("key"), part.select(SCHEMA.names), deleted, copy=copy)
    return sink.getvalue()


@settings(deadline=None, max_examples=examples(15))
@given(
    sizes=st.lists(st.integers(0, 40), max_size=6),
    groups=st.integers(1, 9),
    block_size=st.sampled_from([64, 1024, 1 << 16, 16 << 20]),
    cut=st.sampled_from([0, 1, 2]),
    data=st.data(),
)
def test_lent_entries_make_the_same_file(
    sizes: list[int], groups: int, block_size: int, cut: int, data: st.DataObject
) -> None:
    numbers = np.arange(sum(sizes))
    keys = [bytes([number // groups % 256]) + int(number).to_bytes(3, "big") for number in numbers]
    rows = pa.table(
        {
            "key": pa.array(sorted(keys), pa.binary()),
            "path": pa.array([f"day={number}/part-{number:05d}.parquet" for number in numbers], pa.string()),
            "size": pa.array([data.draw(st.integers(0, 3)) for _ in numbers], pa.int64()),
            "none": pa.nulls(len(numbers), pa.binary()),
        }
    )
    cuts = [0, *np.cumsum(sizes).tolist()]
    parts = [rows.slice(low, high - low) for low, high in pairwise(cuts)]
    options = {"block_size": block_size, "partition_prefix_bytes": cut}
    file = _file(parts, **options)
    assert _file(parts, copy=False, **options) == file
    plain = SortedFileReader(_file(parts, templates=False, **options))
    reader = SortedFileReader(file)
    assert plain.scan_table(include_deleted=True).equals(reader.scan_table(include_deleted=True))
    assert [block[2:3] for block in plain.blocks()] == [block[2:3] for block in reader.blocks()]
