"""The sorted-block file: immutable, sorted binary keys with typed values, read a range at a time.

    with SortedFileWriter("run.skb", schema=pa.schema([("size", pa.int64())])) as w:
        w.write([b"a", b"b"], pa.record_batch({"size": [1, 2]}))
    with SortedFileReader("run.skb") as r:
        r.get(b"b")                                     # {"size": 2}

Keys and Arrow arrays flow in through `writer`, which cuts them into blocks; blocks, an index of them and a footer lie
in the file; `reader` gives rows, Arrow batches and numpy arrays back. FORMAT.md beside this file describes the bytes.
Begin with `reader` and `writer`, then `block`:

    writing      writer, entries (what callers give), output (whole or absent)
    reading      reader (the public face), open_file (blocks as they are asked for), block_cache, source
    answers      lookups, scanning, numbered (keys that are a prefix and a number), verify, size_report
    merging      merge, merge_cursor, merge_writer
    a file       file (header, footer, trailer), index, index_rows, summaries, strided, codec (checksums)
    a block      block; keys, key_encoding; values, integers, strings; names, name_encoding (strings of one make)
    compiled     kernels_*: each has a plain twin beside its caller; lazy says when they are loaded
    making keys  keycode, ordered (typed tuples), key_order (sorting)
"""

from .byte_io import BytesSource, PathSource, Source
from .entries import prefix_changes
from .file import GroupHandle
from .index_rows import BlockInfo
from .inspection import Finding
from .keys import prefix_successor
from .merge import MergeSummary, merge_runs
from .numbered import Numbered
from .ordered import KeyLayout, OrderedCode
from .reader import SortedFileReader
from .scanning import read_block_range
from .strided import StridedSection, read_strided_rows
from .summaries import Summary
from .writer import SortedFileWriter, WriterOptions

__all__ = [
    "BlockInfo",
    "BytesSource",
    "Finding",
    "GroupHandle",
    "KeyLayout",
    "MergeSummary",
    "Numbered",
    "OrderedCode",
    "PathSource",
    "SortedFileReader",
    "SortedFileWriter",
    "Source",
    "StridedSection",
    "Summary",
    "WriterOptions",
    "merge_runs",
    "prefix_changes",
    "prefix_successor",
    "read_block_range",
    "read_strided_rows",
]
