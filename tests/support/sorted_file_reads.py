"""Every way to read a sorted-block file, to read a damaged one as the sound one."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pyarrow as pa
from skipstone.commands.inspect import inspect
from skipstone.hfile_like import SortedFileReader, merge_runs, read_block_range, read_rows
from skipstone.hfile_like.block_values import ENCODING_STRINGS, plain_encoding
from sorted_file_builders import written

NUMBERED_PREFIX = b"\x03\x00\x07"
NAME = "damaged.skb"
_KEYS_MAX = 6


class Named:
    """A file in memory with a name, which errors contain."""

    name = NAME

    def __init__(self, data: bytes | bytearray):
        self.data, self.size = memoryview(data), len(data)

    def read_ranges(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
        return [self.data[offset : offset + length] for offset, length in ranges]


Face = Callable[[SortedFileReader], object]


class Faces:
    """The reads that fit a sound file, and their results as texts, which compare as NaN does not: `answers`."""

    def __init__(self, sound: bytes, folder: str | None = None):
        self._path = None if folder is None else os.path.join(folder, NAME)
        reader = SortedFileReader(sound)
        keys = reader.scan_table(include_deleted=True, columns=[])["key"].to_pylist()
        self._keys = keys[:: max(1, len(keys) // _KEYS_MAX)]
        self._middle = keys[len(keys) // 3 : 1 + 2 * len(keys) // 3] or [b""]
        self._groups = list(reader.groups().values())
        self._row_tables = list(reader.row_tables().values())
        self._schema, self._metas = reader.schema, reader.metas()
        self._is_numbered = sum(key.startswith(NUMBERED_PREFIX) for key in keys) > 1
        self.answers = {name: text_of(face(SortedFileReader(Named(sound)))) for name, face in self.faces()}
        reader.close()

    def faces(self) -> Iterator[tuple[str, Face]]:
        """(name, read) of all that fit this file."""
        yield (
            "contents",
            lambda r: [r.schema, r.num_entries, r.num_deleted, r.metas(), r.ends() if r.num_entries else None],
        )
        yield "places", lambda r: [r.groups(), r.row_tables(), r.blocks()]
        yield "get", lambda r: [r.get(key) for key in [*self._keys, b"\x00nowhere"]]
        yield "get_many", lambda r: r.get_many([*self._keys, b"\x00nowhere"], include_deleted=True)
        yield "get_many of many", lambda r: r.get_many(self._middle * 3)
        yield "scan", lambda r: r.scan_table(include_deleted=True)
        yield "scan between", lambda r: r.scan_table(start=self._middle[0], stop=self._middle[-1])
        yield "scan a prefix", lambda r: r.scan_table(self._middle[0][:2])
        yield "keys", lambda r: r.keys()
        yield "summaries", self._summaries
        for group in self._groups:
            yield f"scan {group.name}", lambda r, g=group: r.scan_table(group=g.name)
            yield f"range of {group.name}", self._range(group.offset, group.length)
        for section in self._row_tables:
            yield f"rows of {section.name}", lambda r, s=section: r.read_rows([(s.name, range(s.rows))])[0]
            yield f"rows of {section.name} alone", lambda r, s=section: read_rows(r.source, s, range(s.rows))
        for meta in self._metas:
            yield f"meta {meta}", lambda r, m=meta: r.meta(m)
        if self._is_numbered:
            yield "numbered", lambda r: self._numbered(r.by_id(NUMBERED_PREFIX).scan(include_deleted=True))
            yield "numbered between", lambda r: self._numbered(r.by_id(NUMBERED_PREFIX).between(7, 40))
            yield "get numbered", lambda r: self._numbered(r.by_id(NUMBERED_PREFIX).get(_SOME))
            yield "block numbers", lambda r: [part.tolist() for part in r.by_id(NUMBERED_PREFIX).block_bounds()]
        yield "merge", self._merge
        if self._path is not None:
            yield "inspect", self._inspect

    def _summaries(self, reader: SortedFileReader) -> object:
        found = reader.zone_maps().items()
        return [(n, [p.tolist() for p in (s.lower, s.upper, s.null_count, s.live)]) for n, s in found if s is not None]

    def _range(self, offset: int, length: int) -> Face:
        return lambda r: read_block_range(r.source, offset, length, self._schema, include_deleted=True)

    def _numbered(self, found: object) -> object:
        return [found.ids.tolist(), *found.columns.values(), str(found.deleted)]  # type: ignore[attr-defined]

    def _merge(self, reader: SortedFileReader) -> object:
        target = io.BytesIO()
        newer = written([self._middle[0]], None, [True], self._schema, compression="none")  # one tombstone
        merge_runs([reader, newer], target, block_size=120)
        return SortedFileReader(Named(target.getvalue())).scan_table(include_deleted=True)

    def _inspect(self, reader: SortedFileReader) -> object:
        assert self._path is not None
        with open(self._path, "wb") as out:
            out.write(reader.source.data)  # type: ignore[attr-defined]
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            inspect(self._path, verify=True, as_json=True)
            inspect(self._path)
        return output.getvalue()


_SOME = np.arange(0, 400, 3, dtype=np.uint64)


def crafted_faces() -> Iterator[tuple[str, Face]]:
    """What streams, or reads one thing, of a file that may claim anything."""

    def metas(reader: SortedFileReader) -> None:
        for name in reader.metas():
            reader.meta(name)

    def some(reader: SortedFileReader) -> list[bytes]:
        return [key for info in reader.blocks(range(min(3, reader.num_blocks))) for key in info[-2:]]

    def drained(things: Iterator[object], most: int = 200) -> None:
        for _ in islice(things, most):
            pass

    yield "entries", lambda r: drained(iter([r.num_entries, r.num_deleted, r.groups(), r.row_tables()]))
    yield "metas", metas
    yield "ends", lambda r: drained(iter(r.ends() if r.num_blocks else ()))
    yield "get", lambda r: drained(r.get(key) for key in [*some(r), b"", b"k", b"\xff" * 9])
    yield "get_many", lambda r: drained(iter(r.get_many(some(r) * 4).column_names))
    yield "scan", lambda r: drained(r.scan(include_deleted=True))
    yield "blocks", lambda r: drained(iter(r.blocks()))
    yield "summaries", lambda r: drained(iter(r.zone_maps()))
    yield "numbered", lambda r: drained(iter(r.by_id(b"").get(_SOME).columns))
    yield "numbers", lambda r: drained(iter(r.by_id(b"").block_bounds()))
    yield "merge", lambda r: drained(iter([merge_runs([r, r], io.BytesIO(), block_size=1 << 12)]))
    yield "verify", lambda r: r.verify()


def text_of(answer: object) -> str:
    """An answer as a text: it compares as NaN does not."""
    if isinstance(answer, list | tuple):
        return "\n".join(map(text_of, answer))
    if isinstance(answer, dict):
        return "\n".join(f"{name}: {text_of(value)}" for name, value in answer.items())
    if isinstance(answer, pa.Table | pa.ChunkedArray | pa.Array):
        arrays = answer.columns if isinstance(answer, pa.Table) else [answer]
        return repr([_plain(array) for array in arrays])
    if isinstance(answer, pa.Scalar):
        return repr(_plain(pa.array([answer], answer.type)))
    if isinstance(answer, np.ndarray):
        return repr(answer.tolist())
    return repr(answer)


def _plain(array: pa.Array | pa.ChunkedArray) -> list:
    """Values as Python has them; those of times as the integers that they are: Python's own end in the year 9999."""
    # Of strings, every offset and every character; a decimal of too many digits, or half a day, is no danger.
    array.validate(full=plain_encoding(array.type) == ENCODING_STRINGS)
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int64() if array.type.bit_width == 64 else pa.int32())
    return array.to_pylist()
