"""The sorted-block file: immutable, sorted binary keys with typed values, read a range at a time.

    with SortedFileWriter("run.sbf", schema=pa.schema([("size", pa.int64())])) as w:
        w.write([b"a", b"b"], pa.record_batch({"size": [1, 2]}))
    with SortedFileReader("run.sbf") as r:
        r.get(b"b")                                     # {"size": 2}

Keys and Arrow arrays flow in through `writer`, which cuts them into blocks; blocks, an index of them and a footer lie
in the file; `reader` gives rows, Arrow batches and numpy arrays back. FORMAT.md beside this file describes the bytes.
A file may be damaged or crafted: every length, count and offset is checked before it is used.

Begin with `reader` and `writer`, then `block`. The modules are in a line, and each imports from those before it:

    bytes        byte_io (sources and outputs), codec (checksums, compression, limits)
    encodings    integers; keys; name_parts, names (strings of one make); values
    a block      block; entries (keys, columns and tombstones in memory; keys of several numbers)
    the index    index_rows (its tables, and bounds of blocks), index (the way down them)
    a file       file (header, footer, trailer), open_file (blocks and strided rows as they are asked for)
    reading      scanning, lookups with gathering (from many blocks at once), narrowing (entries within bounds),
                 numbered (keys that are a prefix and a number), reader (the public face)
    writing      name_encoding, block_encoding, column_encoding (many blocks at once), index_building, writer
    checking     inspection
    merging      key_order (sorting and merging keys), merge_cursor, merge
    making keys  ordered (numbers and typed tuples as keys)

What only writers need is imported by no reader. `kernels_*` are compiled twins of code in the modules that call them;
`skipstone.lazy` alone imports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_from
from .byte_io import BytesSource, PathSource, Source
from .entries import KeyLayout, prefix_changes
from .file import GroupHandle, StridedSection
from .index_rows import BlockInfo, Summary
from .keys import prefix_successor
from .numbered import Numbered, NumberedKeys
from .open_file import read_strided_rows
from .reader import SortedFileReader
from .scanning import read_block_range

if TYPE_CHECKING:
    from .inspection import Finding
    from .merge import MergeSummary, merge_runs
    from .ordered import OrderedCode
    from .writer import SortedFileWriter, WriterOptions


# What only writers, checks and some kinds of index need is loaded when it is first used.
_HOMES = {
    "Finding": ".inspection",
    "MergeSummary": ".merge",
    "OrderedCode": ".ordered",
    "SortedFileWriter": ".writer",
    "WriterOptions": ".writer",
    "merge_runs": ".merge",
}

__all__ = [
    "BlockInfo",
    "BytesSource",
    "Finding",
    "GroupHandle",
    "KeyLayout",
    "MergeSummary",
    "Numbered",
    "NumberedKeys",
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


__getattr__ = names_from(__name__, _HOMES)
