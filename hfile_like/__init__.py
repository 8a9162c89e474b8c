"""The sorted-block file: immutable, sorted binary keys with typed values, read a range at a time.

    with SortedFileWriter("run.skb", schema=pa.schema([("size", pa.int64())])) as w:
        w.write([b"a", b"b"], pa.record_batch({"size": [1, 2]}))
    with SortedFileReader("run.skb") as r:
        r.get(b"b")                                     # {"size": 2}

With a filter of the keys, a look-up reads no block for a key that is not there:

    from skipstone.bloom import SplitBlockBuilder, SplitBlockFilter

    with SortedFileWriter("run.skb", schema=schema, key_filter=SplitBlockBuilder(fpp=0.01)) as w: ...
    with SortedFileReader("run.skb", key_filter=SplitBlockFilter.from_bytes) as r: ...

FORMAT.md beside this file tells the bytes. Where to read, from the outside in:

    writing      writer, entries (what callers give), settings, sampling (sizes, compression), output (whole or absent)
    reading      reader, source, lookups, numbered, between, scanning (many blocks as one batch), verify, census
    held         cache; held, cached, flat_lookups, taken: look-ups in blocks that are held
    merging      merge, merge_cursor, merge_order, merge_writer, block_copies
    a file       footer, index, index_rows, index_build, summaries, pieces, dictionary, strided, codec (checksums)
    a block      block; keys, key_encoding, plain_keys; values, integers, strings, digits; templates, template_* (names)
    many blocks  column_runs, key_columns, template_columns
    compiled     kernels_*: each has a plain twin beside its caller; lazy tells when they are loaded
    making keys  keycode, ordered (typed tuples), key_order (sorting)
"""

from .batches import read_block_range
from .cache import BlockCache
from .entries import prefix_changes
from .footer import GroupHandle
from .index_rows import BlockInfo
from .keycode import KeyLayout
from .keys import prefix_successor
from .merge import MergeSummary, merge_runs
from .numbered import Numbered
from .ordered import OrderedCode
from .pieces import KeyFilter, KeyFilterBuilder
from .reader import SortedFileReader
from .source import BytesSource, MmapSource, PathSource, Source
from .strided import StridedSection, read_strided_rows
from .summaries import Summary
from .verify import Finding
from .writer import SortedFileWriter, WriterOptions

__all__ = [
    "BlockCache",
    "BlockInfo",
    "BytesSource",
    "Finding",
    "GroupHandle",
    "KeyFilter",
    "KeyFilterBuilder",
    "KeyLayout",
    "MergeSummary",
    "MmapSource",
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
