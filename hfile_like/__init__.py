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

`kernels_lookup` and `kernels_template` are compiled code, which only `base.lazy` imports. Modules that only writers
need are loaded when they are first used.
"""

from __future__ import annotations

from ..base.lazy import exports_of, names_from

_HOMES = exports_of(__name__)

__all__ = list(_HOMES)
__getattr__ = names_from(__name__, _HOMES)
