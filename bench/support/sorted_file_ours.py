"""Ours, for bench/sorted_file.py: a file of a column with one setting for all cells, and what it costs to read it.

written   use="both"; a group for each partition where those have a thousand entries or so, else a meta that lists them
read      by its path; what a call asks of the file is counted
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from skipstone.hfile_like import PathSource, SortedFileReader, SortedFileWriter

from bench.support.harness import Answer
from bench.support.sorted_file_data import Column

FILE = "data.sbf"
_GROUP_ENTRIES_LEAST = 1_000
_PARTITIONS = "partitions"


class Counted:
    """A source that counts what it is asked for."""

    def __init__(self, source: PathSource):
        self._source = source
        self.name, self.size = source.name, source.size
        self.requests = self.bytes = 0

    def read_ranges(self, ranges: list[tuple[int, int]]) -> Sequence[bytes | memoryview]:
        self.requests += len(ranges)
        self.bytes += sum(length for _, length in ranges)
        return self._source.read_ranges(ranges)

    def close(self) -> None:
        self._source.close()


class Ours:
    """As `Store` in bench/support/sorted_file_peers.py."""

    SETTING = """use="both"; a group for each partition where those have a thousand entries or so, else a meta that
        lists them. Read by its path, without a cache of blocks."""

    def __init__(self, folder: Path, column: Column):
        self.source = Counted(PathSource(folder / FILE))
        self.reader = SortedFileReader(self.source)
        self._is_grouped, self._prefix_bytes = is_grouped(column), column.prefix_bytes
        self.get: Callable[[bytes], dict[str, Any] | None] = self.reader.get

    @staticmethod
    def make(folder: Path, column: Column, prepared: Iterable[Any] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with SortedFileWriter(folder / FILE, schema=column.values.schema, use="both") as writer:
            if not is_grouped(column):
                writer.write(column.keys, column.values)
                writer.put_meta(_PARTITIONS, b"".join(column.partitions))
                return
            starts = column.starts.tolist()
            for i, partition in enumerate(column.partitions):
                size = starts[i + 1] - starts[i]
                writer.write(column.keys.slice(starts[i], size), column.values.slice(starts[i], size))
                writer.end_group(partition.hex())

    def get_many(self, keys: list[bytes]) -> pa.Table:
        return self.reader.get_many(keys).drop_columns(["found"])

    def scan(self, prefix: bytes = b"", columns: Sequence[str] | None = None) -> pa.Table:
        if prefix and self._is_grouped:
            return self.reader.scan_table(group=prefix.hex(), columns=columns)
        return self.reader.scan_table(prefix, columns=columns)

    def partitions(self) -> list[bytes]:
        if self._is_grouped:
            return list(map(bytes.fromhex, self.reader.groups()))
        prefixes, width = self.reader.meta(_PARTITIONS), self._prefix_bytes
        return [prefixes[start : start + width] for start in range(0, len(prefixes), width)]

    def close(self) -> None:
        self.reader.close()
        self.source.close()


def is_grouped(column: Column) -> bool:
    """Whether a file of the column has a group for each partition."""
    return len(column) >= _GROUP_ENTRIES_LEAST * len(column.partitions)


def counted(store: Ours, ask: Callable[[], Any], before: tuple[int, int] | None = None) -> Answer:
    """An answer with the requests and the bytes that it took since `before`, or since now."""
    requests, size = before or (store.source.requests, store.source.bytes)
    value = ask()
    return Answer(value, store.source.requests - requests, store.source.bytes - size)
