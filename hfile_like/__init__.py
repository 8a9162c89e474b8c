"""The sorted-block file: immutable, sorted binary keys with typed values, read a range at a time.

    with SortedFileWriter("run.sbf", schema=pa.schema([("size", pa.int64())])) as w:
        w.write([b"a", b"b"], pa.record_batch({"size": [1, 2]}))
    with SortedFileReader("run.sbf") as r:
        r.get(b"b")                                     # {"size": 2}

The writer cuts keys and Arrow arrays into blocks. The file contains the blocks, an index of them and a footer. The
reader returns rows, Arrow batches and numpy arrays. FORMAT.md describes the bytes. A file may be damaged or crafted:
every length, count and offset is checked before it is used.

Start with `reader` and `writer`, then `block`. Each module imports only from those before it:

    bytes        source (inputs and outputs), codec (checksums, compression)
    encodings    frame (integers), templates (strings of one form), block_keys, block_values: both directions each
    a block      block
    a file       block_index (and zone maps), footer, rows (row tables)
    entries      entries (in memory), key_layout (keys of several numbers)
    reading      block_reader (an open file), scan, id_scan (keys that are a prefix and an id), lookup, verify, reader
                 (the public face)
    writing      writer
    merging      key_sort, merge

`kernels_lookup` and `kernels_sort` are compiled code, which `base.lazy` alone imports. Modules that only writers
need are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.lazy import names_from
from .block_index import BlockInfo, ZoneMap
from .block_keys import prefix_successor
from .entries import prefix_changes
from .footer import GroupHandle, RowTable
from .id_scan import IdEntries, IdKeys
from .key_layout import KeyLayout
from .reader import SortedFileReader
from .rows import read_rows, read_rows_of_tables
from .scan import read_block_range
from .source import BytesSource, PathSource, Source

if TYPE_CHECKING:
    from ..base.ordered_keys import OrderedCode
    from .merge import MergeSummary, merge_runs
    from .verify import Finding
    from .writer import SortedFileWriter, WriterOptions


_HOMES = {
    "Finding": ".verify",
    "MergeSummary": ".merge",
    "OrderedCode": "..base.ordered_keys",
    "SortedFileWriter": ".writer",
    "WriterOptions": ".writer",
    "merge_runs": ".merge",
}

__all__ = [
    "BlockInfo",
    "BytesSource",
    "Finding",
    "GroupHandle",
    "IdEntries",
    "IdKeys",
    "KeyLayout",
    "MergeSummary",
    "OrderedCode",
    "PathSource",
    "RowTable",
    "SortedFileReader",
    "SortedFileWriter",
    "Source",
    "WriterOptions",
    "ZoneMap",
    "merge_runs",
    "prefix_changes",
    "prefix_successor",
    "read_block_range",
    "read_rows",
    "read_rows_of_tables",
]


__getattr__ = names_from(__name__, _HOMES)
