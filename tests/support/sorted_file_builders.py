"""Small sorted-block files for the tests of them."""

import io

import pyarrow as pa
from skipstone.hfile_like import SortedFileWriter


def written(keys, values, deleted=None, schema=None, **options) -> bytes:
    """A file of entries. Without values it has no value columns."""
    if schema is None:
        schema = pa.schema([]) if values is None else values.schema
    target = io.BytesIO()
    with SortedFileWriter(target, schema=schema, **options) as writer:
        writer.write(keys, values, deleted)
    assert writer.size_bytes == len(target.getvalue())
    return target.getvalue()


def numbered(count, **options) -> bytes:
    """Keys k00000, k00001, ... with their numbers."""
    return written([b"k%05d" % i for i in range(count)], pa.record_batch({"n": pa.array(range(count))}), **options)


class CountingSource:
    """A file in memory that records which ranges are read of it."""

    def __init__(self, data: bytes):
        self.data, self.size, self.ranges = bytes(data), len(data), []

    def read_ranges(self, ranges):
        self.ranges += ranges
        return [self.data[o : o + n] for o, n in ranges]
