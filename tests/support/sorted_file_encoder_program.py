"""Encodes random keys and columns by compiled code, each in memory that must not be left (`guarded_memory`), and
orders them for a merge; run as a program, so that a read past an end ends this and not the tests.

    python sorted_file_encoder_program.py ROUNDS
"""

from __future__ import annotations

import faulthandler
import random
import sys
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from guarded_memory import guarded
from skipstone import lazy
from skipstone.hfile_like.block_encoding import encode_column, encode_keys
from skipstone.hfile_like.codec import compressor_of
from skipstone.hfile_like.key_order import merge_order, plain_order
from sorted_file_samples import noise, uuid_text

COUNTS = (1, 2, 3, 15, 16, 17, 40, 100, 700)
TEXTS: list[Callable[[int], bytes]] = [
    lambda i: noise(i, 3 + i % 9),
    lambda i: b"d=%d/part-%05d-%s.parquet" % (i // 30, i, uuid_text(i).encode()),
    lambda i: b"k%06d" % (i * 7),
    lambda i: b"u%d-%d" % (i * i, i % 7),
    lambda i: (i * i).to_bytes(8, "big"),
    lambda i: b"abc" + b"x" * (i % 9),
    lambda i: uuid_text(i).encode(),
    lambda i: noise(i, 6).hex().encode() + b"-%d" % (i % 3),
]
INTEGERS = [pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.uint64(), pa.int64()]
_COMPRESSOR = compressor_of("zstd")


def at_the_edge(array: pa.Array) -> pa.Array:
    """An array whose buffers end with what they must hold, before a page that cannot be read."""
    sizes = [(len(array) + 7) // 8]
    kind = array.type
    if pa.types.is_boolean(kind):
        sizes += sizes
    elif pa.types.is_integer(kind):
        sizes.append(len(array) * kind.byte_width)
    else:
        width = 8 if pa.types.is_large_binary(kind) else 4
        ends = np.frombuffer(array.buffers()[1], dtype=f"i{width}", count=len(array) + 1)
        sizes += [width * len(ends), int(ends[-1])]
    buffers = [
        None if buffer is None else pa.py_buffer(guarded(memoryview(buffer).cast("B")[:size]))
        for buffer, size in zip(array.buffers(), sizes, strict=True)
    ]
    return pa.Array.from_buffers(kind, len(array), buffers)


def encode(chooser: random.Random) -> None:
    """One round."""
    count, text = chooser.choice(COUNTS), chooser.choice(TEXTS)
    texts = [text(i) for i in range(count)]
    encode_keys(at_the_edge(pa.array(sorted(set(texts)), pa.binary())), _COMPRESSOR)
    some = [None if i and chooser.random() < 0.2 else value for i, value in enumerate(texts)]
    for kind in (pa.binary(), pa.large_binary()):
        encode_column(at_the_edge(pa.array(texts, kind)))
        encode_column(at_the_edge(pa.array(some, kind)))
    for kind in INTEGERS:
        most = (1 << 8 * kind.byte_width - 1) - 1
        base, step = chooser.randrange(most), chooser.choice((0, 0, 1, 7))
        spread = chooser.choice((0, 1, 200, 60_000, 1 << 30))
        numbers = [min(base + chooser.randint(0, spread) + step * i, most) for i in range(count)]
        encode_column(at_the_edge(pa.array(numbers, kind)))
        encode_column(at_the_edge(pa.array([None if i % 7 == 3 else n for i, n in enumerate(numbers)], kind)))
    encode_column(at_the_edge(pa.array([i % 3 == 0 for i in range(count)])))
    runs = [sorted({text(chooser.randrange(count)) for _ in range(count)}) for _ in range(3)]
    keys = at_the_edge(pa.array([key for run in runs for key in run], pa.binary()))
    bounds = np.cumsum([0, *map(len, runs)], dtype=np.int64)
    assert merge_order(keys, bounds).tolist() == plain_order(keys).tolist()


def main() -> None:
    """So many rounds."""
    faulthandler.enable()
    lazy.LOAD_ABOVE_NS, lazy.COMPILE_ABOVE_NS, lazy.USE_ABOVE_NS = -1, -1, -1
    chooser = random.Random(1)
    for _ in range(int(sys.argv[1])):
        encode(chooser)


if __name__ == "__main__":
    main()
