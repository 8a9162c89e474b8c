"""A flat column chunk of dictionary codes, without a value made for each row: how often each value of the dictionary
comes, and in which rows some of them are.

The dictionary is read as values of the file's Arrow type, the pages only as far as they hold codes. Whatever is not
known here (plain pages after a dictionary that grew too large, other types, bytes that do not add up) is None, and
pyarrow's to read. A page that has a checksum must match it.

Format: github.com/apache/parquet-format, Encodings.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...caching import cached_property
from ...errors import SkipstoneError
from ...lazy import kernels_for, read_only
from .page_headers import DICTIONARY_PAGE, RLE, ChunkPlace, StoredPages, headers_in
from .page_rows import CODED, PLAIN, REFUSALS, for_kernels, is_served, opened, texts_plainly
from .thrift import varint_at

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from .page_headers import ReadAt

_TEXTS_MAX = 2_000
_CODE_BITS_MAX = 24
_CODE_PLAIN_NS = 10  # what a code takes without compiled code
_RUNS_PLAIN_MAX = 16  # pages of more are decoded sooner than they are walked without compiled code


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
    if leaf.max_repetition_level or leaf.max_definition_level > 1 or not is_served(leaf, kind):
        return None
    place = ChunkPlace.of(chunk)
    if place.codec is None or place.data_begin == place.begin:
        return None
    try:
        data = memoryview(read_at(place.begin, place.end - place.begin))
        pages = StoredPages(place.codec, data, headers_in(data, chunk.num_values))
        return CodedChunk(pages, kind, bool(leaf.max_definition_level), chunk.num_values)
    except SkipstoneError:
        raise
    except REFUSALS:
        return None


class CodedChunk:
    """One column chunk of which every data page holds dictionary codes.

    Its methods return None for what is not known here, and raise CorruptionError as `coded_chunk`.

    kind            the Arrow type of its values
    values_count    how many values the dictionary has; they may come twice in it, or not at all in the rows
    row_count       rows, nulls among them
    """

    def __init__(self, pages: StoredPages, kind: pa.DataType, may_be_null: bool, row_count: int):
        """Raises one of `REFUSALS` for a chunk that is not as described."""
        self.kind, self.row_count = kind, row_count
        self._pages, self._may_be_null = pages, may_be_null
        dictionary, *data = pages.headers[:, :3].tolist() or [(-1, 0, 0)]
        if dictionary[0] != DICTIONARY_PAGE or dictionary[2] not in (PLAIN, CODED[0]):
            raise ValueError("a chunk that does not begin with a dictionary")
        if any(kind == DICTIONARY_PAGE or encoding not in CODED for kind, _, encoding in data):
            raise ValueError("a page without codes")
        if sum(count for _, count, _ in data) != row_count:
            raise ValueError("pages of other rows than the chunk's")
        pages.check()
        self.values_count = dictionary[1]

    @cached_property
    def dictionary_bytes(self) -> memoryview:
        """The dictionary as Parquet has it: chunks of one type are alike in it where their codes are."""
        return opened(*next(self._pages.each()), self._pages.codec)[1]

    @cached_property
    def _of_kernels(self) -> tuple[np.ndarray, np.ndarray, bool]:
        return for_kernels(self._pages)

    def values(self) -> pa.Array | None:
        """The dictionary's values."""
        try:
            return self._values()
        except REFUSALS:
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
        kernels = kernels_for("engine.parquet.kernels", self.row_count * _CODE_PLAIN_NS)
        try:
            if kernels is not None:
                valid_count = kernels.count_codes(*self._of_kernels, self._may_be_null, counts)
            else:
                for levels, row_count, codes in self._coded_pages():
                    of_levels = np.array([0, row_count])
                    if levels is not None:
                        of_levels[:] = 0
                        if not count_plainly(levels, 1, row_count, of_levels):
                            return None
                    count = int(of_levels[1])
                    if count and not (len(codes) and count_plainly(codes[1:], int(codes[0]), count, counts)):
                        return None
                    valid_count += count
        except REFUSALS:
            return None
        if valid_count < 0 or (not self.values_count and valid_count):
            return None
        return counts[: self.values_count], self.row_count - valid_count

    def rows_of(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """(positions in the row group, ascending, and codes, both int64) of the rows whose value is wanted: bool
        [values]. None where some row is null, too."""
        kernels = kernels_for("engine.parquet.kernels", self.row_count * _CODE_PLAIN_NS)
        try:
            if kernels is not None:
                rows, codes = np.empty((2, self.row_count), dtype=np.int64)
                is_wanted = read_only(wanted.view(np.uint8))
                found = kernels.rows_of_codes(*self._of_kernels, self._may_be_null, is_wanted, rows, codes)
                return None if found < 0 else (rows[:found], codes[:found])
            parts: list[np.ndarray] = []
            for levels, row_count, codes in self._coded_pages():
                if levels is not None or not len(codes):
                    return None
                part = unpacked_plainly(codes[1:], int(codes[0]), row_count)
                if part is None or int(part.max(initial=0)) >= len(wanted):
                    return None
                parts.append(part)
        except REFUSALS:
            return None
        codes = np.concatenate(parts)
        rows = np.flatnonzero(wanted[codes])
        return rows, codes[rows].astype(np.int64)

    def _coded_pages(self) -> Iterator[tuple[np.ndarray | None, int, np.ndarray]]:
        """Of each page: (its levels as runs of codes of one bit, None where no row is null; rows; how many bits a code
        has, and runs of codes)."""
        for header, stored in list(self._pages.each())[1:]:
            levels, rest = opened(header, stored, self._pages.codec)
            if levels and not self._may_be_null:
                raise ValueError("levels that are not known")
            if header.levels_bytes < 0 and self._may_be_null:
                if header.levels_encoding != RLE:
                    raise ValueError("levels that are not known")
                end = 4 + int.from_bytes(rest[:4], "little")
                levels, rest = rest[4:end], rest[end:]
            all_valid = not self._may_be_null or is_one_run_of_ones(levels, header.values_count)
            of_levels = None if all_valid else np.frombuffer(levels, dtype=np.uint8)
            yield of_levels, header.values_count, np.frombuffer(rest, dtype=np.uint8)


def is_one_run_of_ones(levels: memoryview, count: int) -> bool:
    """Whether runs of levels say, in one run, that none of so many rows is null."""
    if len(levels) < 2 or levels[-1] != 1:
        return False
    head, end = varint_at(levels, 0)  # type: ignore[arg-type]
    return head == count << 1 and end == len(levels) - 1


# -- codes -------------------------------------------------------------------------------------------------------------


def count_plainly(data: np.ndarray, width: int, count: int, counts: np.ndarray) -> bool:
    """Adds to int64 `counts` how often each code comes among the first `count` of uint8 `data`, runs of codes of so
    many bits. Returns whether they are there, and none is beyond `counts`."""
    codes = unpacked_plainly(data, width, count)
    if codes is None or (len(codes) and int(codes.max()) >= len(counts)):
        return False
    counts += np.bincount(codes, minlength=len(counts))
    return True


def unpacked_plainly(data: np.ndarray, width: int, count: int) -> np.ndarray | None:
    """The first `count` codes, unsigned; None where they are not there, or their runs are many."""
    if width > _CODE_BITS_MAX:
        return None
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
