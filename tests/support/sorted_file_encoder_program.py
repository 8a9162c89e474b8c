"""Sorts random keys by compiled code, each in memory that must not be left (`guarded_memory`); run as a program, so
that a read past an end ends this and not the tests.

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
from skipstone.base import lazy
from skipstone.hfile_like.key_sort import sorted_by_arrow, sorted_keys
from sorted_file_samples import noise, uuid_text

COUNTS = (2, 3, 15, 16, 17, 40, 100, 700)
KEYS: list[Callable[[int], bytes]] = [
    lambda i: noise(i, 9),
    lambda i: b"d=%d/part-%05d-%s.parquet" % (i // 30, i, uuid_text(i).encode()),
    lambda i: b"k%06d" % (i * 7),
    lambda i: b"u%d-%d\0" % (i * i, i % 7),
    lambda i: (i * i).to_bytes(8, "big"),
    lambda i: b"abc" + b"x" * (i % 9) + b"\0",
    lambda i: uuid_text(i).encode(),
]


def at_the_edge(keys: pa.BinaryArray) -> pa.BinaryArray:
    """An array whose buffers end with what they must hold, before a page that cannot be read."""
    ends = np.frombuffer(keys.buffers()[1], dtype="<i4", count=len(keys) + 1)
    sizes = 4 * len(ends), int(ends[-1])
    data = [guarded(memoryview(b).cast("B")[:size]) for b, size in zip(keys.buffers()[1:], sizes, strict=True)]
    return pa.Array.from_buffers(keys.type, len(keys), [None, *map(pa.py_buffer, data)])


def main() -> None:
    """So many rounds."""
    faulthandler.enable()
    lazy.LOAD_ABOVE_NS, lazy.COMPILE_ABOVE_NS, lazy.USE_ABOVE_NS = -1, -1, -1
    chooser = random.Random(1)
    for _ in range(int(sys.argv[1])):
        count, key = chooser.choice(COUNTS), chooser.choice(KEYS)
        keys = at_the_edge(pa.array([key(chooser.randrange(count)) for _ in range(count)], pa.binary()))
        for compiled, plain in zip(sorted_keys(keys), sorted_by_arrow(keys), strict=True):
            assert compiled.tolist() == plain.tolist()


if __name__ == "__main__":
    main()
