"""A flat column chunk of dictionary codes, without a value made for each row: how often each value of the dictionary
comes, and in which rows some of them are.

The dictionary is read as values of the file's Arrow type, the pages only as far as they hold codes. Whatever is not
known here (plain pages after a dictionary that grew too large, other types, bytes that do not add up) is None, and
pyarrow's to read. A page that has a checksum must match it.

Format: github.com/apache/parquet-format, Encodings.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...caching import cached_property
from ...errors import CorruptionError
from ...lazy import kernels_for, read_only
from .page_headers import CODECS
from .page_rows import (
    CODED,
    DICTIONARY_PAGE,
    PLAIN,
    RLE,
    StoredPage,
    decompressed,
    page_at,
    texts_plainly,
)
from .thrift import varint_at

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from .page_headers import ReadAt

_TEXTS_MAX = 2_000
_CODE_BITS_MAX = 24
_CODE_PLAIN_NS = 10  # what a code takes without compiled code
_RUNS_PLAIN_MAX = 16  # pages of more are decoded sooner than they are walked without compiled code
_TIME_UNITS = {"milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
_REFUSALS = (KeyError, IndexError, ValueError, pa.ArrowException, OSError)


def coded_chunk(file: pq.ParquetFile, group: int, name: str, read_at: ReadAt) -> CodedChunk | None:
    """The chunk of a top-level column (by the file's name) in a row group of a file opened by `open_parquet`; None
    where it is not as described above. Raises CorruptionError for a page that does not match its checksum."""
    metadata = file.metadata
    leaves = [i for i in range(metadata.num_columns) if metadata.schema.column(i).path.split(".", 1)[0] == name]
    if len(leaves) != 1:
        return None
    leaf, chunk = metadata.schema.column(leaves[0]), metadata.row_group(group).column(leaves[0])
    kind = file.arrow_schema.field(name).type
    if pa.types.is_dictionary(kind):  # as it was read, or as Arrow's schema has it
        kind = kind.value_type
    if leaf.max_repetition_level or leaf.max_definition_level > 1 or not _is_served(leaf, kind):
        return None
    begin = chunk.dictionary_page_offset
    if not chunk.has_dictionary_page or not 0 < begin < chunk.data_page_offset or chunk.compression not in CODECS:
        return None
    try:
        data = read_at(begin, chunk.total_compressed_size)
        return CodedChunk(data, CODECS[chunk.compression], kind, bool(leaf.max_definition_level), chunk.num_values)
    except CorruptionError:
        raise
    except _REFUSALS:
        return None


def _is_served(leaf: Any, kind: pa.DataType) -> bool:
    """Whether the dictionary's bytes are those of Arrow's values, or texts."""
    physical, of = leaf.physical_type, pa.types
    if of.is_timestamp(kind):
        return (
            physical == "INT64"
            and _TIME_UNITS.get(json.loads(leaf.logical_type.to_json()).get("timeUnit")) == kind.unit
        )
    return kind in {
        "BYTE_ARRAY": (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()),
        "INT32": (pa.int32(), pa.uint32(), pa.date32()),
        "INT64": (pa.int64(), pa.uint64()),
        "FLOAT": (pa.float32(),),
        "DOUBLE": (pa.float64(),),
    }.get(physical, ())


class CodedChunk:
    """One column chunk of which every data page holds dictionary codes.

    Its methods return None for what is not known here, and raise CorruptionError as `coded_chunk`.

    kind            the Arrow type of its values
    values_count    how many values the dictionary has; they may come twice in it, or not at all in the rows
    row_count       rows, nulls among them
    """

    def __init__(self, data: bytes, codec: int, kind: pa.DataType, may_be_null: bool, row_count: int):
        """Raises one of `_REFUSALS` for a chunk that is not as described."""
        self.kind, self.row_count = kind, row_count
        self._codec, self._may_be_null = codec, may_be_null
        view, offset, rows_left = memoryview(data), 0, row_count
        self._pages: list[StoredPage] = []
        while rows_left > 0:
            page = page_at(view, offset)
            offset = page.end
            if not self._pages:
                if page.kind != DICTIONARY_PAGE or page.encoding not in (PLAIN, CODED[0]):
                    raise ValueError("a chunk that does not begin with a dictionary")
            elif page.kind == DICTIONARY_PAGE or page.encoding not in CODED:
                raise ValueError("a page without codes")
            else:
                rows_left -= page.values_count
            self._pages.append(page)
        if rows_left or not self._pages:
            raise ValueError("pages of other rows than the chunk's")
        self.values_count = self._pages[0].values_count

    @cached_property
    def dictionary_bytes(self) -> memoryview:
        """The dictionary as Parquet has it: chunks of one type are alike in it where their codes are."""
        page = self._pages[0]
        return decompressed(page.stored, self._codec, page.size)

    def values(self) -> pa.Array | None:
        """The dictionary's values."""
        try:
            return self._values()
        except _REFUSALS:
            return None

    def _values(self) -> pa.Array | None:
        data, count, kind = self.dictionary_bytes, self.values_count, self.kind
        if pa.types.is_primitive(kind):
            is_whole = len(data) * 8 == count * kind.bit_width
            return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)]) if is_whole else None
        if count > _TEXTS_MAX or not count:
            return None
        bounds = texts_plainly(np.frombuffer(data, dtype=np.uint8), np.arange(count))
        if bounds is None:
            return None
        texts = [data[begin + 4 : end] for begin, end in bounds.tolist()]
        is_large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
        offsets = np.zeros(count + 1, dtype=np.int64 if is_large else np.int32)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))])

    def counts(self) -> tuple[np.ndarray, int] | None:
        """(int64 [values]: how many rows have each, how many are null)."""
        counts, valid_count = np.zeros(max(self.values_count, 1), dtype=np.int64), 0
        try:
            for levels, row_count, codes in self._coded_pages():
                count = row_count
                if levels is not None:
                    of_levels = np.zeros(2, dtype=np.int64)
                    if not count_codes(levels, 1, row_count, of_levels):
                        return None
                    count = int(of_levels[1])
                if count and not (len(codes) and count_codes(codes[1:], int(codes[0]), count, counts)):
                    return None
                valid_count += count
        except CorruptionError:
            raise
        except _REFUSALS:
            return None
        if not self.values_count and valid_count:
            return None
        return counts[: self.values_count], self.row_count - valid_count

    def rows_of(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """(positions in the row group, ascending, and codes, both int64) of the rows whose value is wanted: bool
        [values]. None where some row is null, too."""
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        row = 0
        try:
            for levels, row_count, codes in self._coded_pages():
                if levels is not None or not len(codes):
                    return None
                part = rows_of_codes(codes[1:], int(codes[0]), row_count, wanted)
                if part is None:
                    return None
                parts.append((part[0] + row, part[1]))
                row += row_count
        except CorruptionError:
            raise
        except _REFUSALS:
            return None
        return np.concatenate([rows for rows, _ in parts]), np.concatenate([codes for _, codes in parts])

    def _coded_pages(self) -> Iterator[tuple[np.ndarray | None, int, np.ndarray]]:
        """Of each page: (its levels as runs of codes of one bit, None where no row is null; rows; how many bits a code
        has, and runs of codes)."""
        for page in self._pages[1:]:
            if page.levels_bytes is not None:
                levels, rest = page.stored[: page.levels_bytes], page.stored[page.levels_bytes :]
                if page.is_compressed:
                    rest = decompressed(rest, self._codec, page.size - page.levels_bytes)
                if page.levels_bytes and not self._may_be_null:
                    raise ValueError("levels that are not known")
            else:
                body = decompressed(page.stored, self._codec, page.size)
                if self._may_be_null:
                    if page.levels_encoding != RLE:
                        raise ValueError("levels that are not known")
                    end = 4 + int.from_bytes(body[:4], "little")
                    levels, rest = body[4:end], body[end:]
                else:
                    levels, rest = body[:0], body
            all_valid = not self._may_be_null or is_one_run_of_ones(levels, page.values_count)
            of_levels = None if all_valid else np.frombuffer(levels, dtype=np.uint8)
            yield of_levels, page.values_count, np.frombuffer(rest, dtype=np.uint8)


def is_one_run_of_ones(levels: memoryview, count: int) -> bool:
    """Whether runs of levels say, in one run, that none of so many rows is null."""
    if len(levels) < 2 or levels[-1] != 1:
        return False
    head, end = varint_at(levels, 0)  # type: ignore[arg-type]
    return head == count << 1 and end == len(levels) - 1


# -- codes -------------------------------------------------------------------------------------------------------------


def count_codes(data: np.ndarray, width: int, count: int, counts: np.ndarray) -> bool:
    """Adds to int64 `counts` how often each code comes among the first `count` of uint8 `data`, runs of codes of so
    many bits. Returns whether they are there, and none is beyond `counts`."""
    if width > _CODE_BITS_MAX:
        return False
    kernels = kernels_for("engine.parquet.kernels", count * _CODE_PLAIN_NS)
    if kernels is not None:
        return kernels.count_codes(read_only(data), width, count, counts)
    codes = unpacked_plainly(data, width, count)
    if codes is None or (len(codes) and int(codes.max()) >= len(counts)):
        return False
    counts += np.bincount(codes, minlength=len(counts))
    return True


def rows_of_codes(data: np.ndarray, width: int, count: int, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """(positions, codes), both int64, of those of the first `count` codes that are `wanted`, bool by code."""
    if width > _CODE_BITS_MAX:
        return None
    kernels = kernels_for("engine.parquet.kernels", count * _CODE_PLAIN_NS)
    if kernels is None:
        codes = unpacked_plainly(data, width, count)
        if codes is None or (len(codes) and int(codes.max()) >= len(wanted)):
            return None
        rows = np.flatnonzero(wanted[codes])
        return rows, codes[rows].astype(np.int64)
    rows, codes = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    found = kernels.rows_of_codes(read_only(data), width, count, read_only(wanted.view(np.uint8)), rows, codes)
    return None if found < 0 else (rows[:found], codes[:found])


def unpacked_plainly(data: np.ndarray, width: int, count: int) -> np.ndarray | None:
    """The first `count` codes, unsigned; None where they are not there, or their runs are many."""
    raw, offset, parts = data.tobytes(), 0, []
    for _ in range(_RUNS_PLAIN_MAX):
        if not count:
            break
        head, offset = varint_at(raw, offset)
        size = (head >> 1) * width if head & 1 else (width + 7) // 8
        length = min(8 * (head >> 1) if head & 1 else head >> 1, count)
        if not length or offset + size > len(raw):
            return None
        if head & 1 and width:
            parts.append(_unpacked(data[offset : offset + size], width)[:length])
        else:
            parts.append(np.full(length, int.from_bytes(raw[offset : offset + size], "little"), dtype=np.uint32))
        offset, count = offset + size, count - length
    if count:
        return None
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint32)


def _unpacked(data: np.ndarray, width: int) -> np.ndarray:
    """Codes of so many bits, packed from the lowest bit on."""
    if width in (1, 2, 4):
        shifts = np.arange(0, 8, width, dtype=np.uint8)
        return (data[:, None] >> shifts & np.uint8((1 << width) - 1)).reshape(-1)
    if width in (8, 16):
        return data.view(f"<u{width // 8}")
    bits = np.unpackbits(data, bitorder="little").reshape(-1, width).astype(np.uint32)
    return bits @ (np.uint32(1) << np.arange(width, dtype=np.uint32))
