"""Looking at a whole file: `findings_of` checks every byte of it, `size_report` says where its bytes go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ..errors import CorruptionError, InvalidArgumentError
from . import block, codec, keys, values
from .block import HEAD, SECTION
from .byte_io import Source, name_of, read_exact
from .codec import Where
from .entries import check_ascending
from .file import HEADER, TRAILER, Footer, StridedSection, check_header, open_footer
from .index import BlockIndex
from .index_building import summarise
from .open_file import OpenFile, read_strided_rows

T = TypeVar("T")

_ROWS_AT_ONCE_BYTES = 1 << 20
# Of one strided section: a section that is damaged throughout needs no more.
_FINDINGS_MAX = 1000


@dataclass(frozen=True)
class Finding:
    """Something wrong: which check, where (bytes, or None), and what it is in words."""

    check: str
    offset: int | None
    message: str


def findings_of(file: OpenFile) -> list[Finding]:
    """Every finding of a file, part by part: damage in one does not hide another."""
    file.check_open()
    index, footer = file.index, file.footer
    steps: list[Callable[[], object]] = [partial(_check_header, file)]
    steps += [partial(_check_block, file, i) for i in range(index.block_count)]
    steps += [partial(_check_nodes, index, name) for name in index.summarised]
    steps += [lambda: footer.groups]
    findings = list(_run(steps))
    for section in _or_nothing(lambda: list(footer.strided.values()), findings):
        findings += _check_rows(file.source, section)
    for name in _or_nothing(lambda: list(footer.metas), findings):
        findings += _run([partial(file.meta, name)])
    return findings


def _run(steps: Iterable[Callable[[], object]]) -> Iterator[Finding]:
    for step in steps:
        try:
            step()
        except CorruptionError as error:
            yield Finding(error.check or "unknown", error.offset, str(error))


def _or_nothing(table: Callable[[], list[T]], findings: list[Finding]) -> list[T]:
    """What a table of the footer names; nothing, and a finding more, where it is damaged."""
    names: list[T] = []
    findings += _run([lambda: names.extend(table())])
    return names


def _check_header(file: OpenFile) -> None:
    check_header(read_exact(file.source, [(0, len(HEADER))])[0], file.name)


def _check_block(file: OpenFile, i: int) -> None:
    index = file.index
    info, block = index.block(i), file.block(i)
    decoded = block.keys.to_arrow()
    where = Where(file.name, info.offset)
    try:
        check_ascending(decoded, index.last_key(i - 1) if i else None)
    except InvalidArgumentError as error:
        raise where.bad("key order", f"block {i}: {error}") from None
    if (decoded[0].as_py(), decoded[-1].as_py()) != (info.first_key, info.last_key):
        raise where.bad("key order", f"block {i} does not begin and end with the keys that the index names")
    deleted = block.deleted()
    if (0 if deleted is None else int(deleted.sum())) != info.deleted:
        raise where.bad("tombstones", f"block {i} does not hold the {info.deleted} tombstones that the index names")
    summaries = index.summaries(index.summarised, i, i + 1)
    for position, name in enumerate(file.schema.names):
        column = block.column(position).to_arrow()
        try:
            column.validate()
        except pa.ArrowInvalid as error:
            raise where.bad("values", f"block {i}: column {name!r} is no array ({error})") from None
        summary = summaries.get(name)
        if summary is not None and summarise(column, deleted) != summary.of_row(0):
            raise where.bad(
                "summaries", f"block {i} does not have the bounds and nulls of {name!r} that the index names"
            )


def _check_nodes(index: BlockIndex, column: str) -> None:
    for named, actual in index.summarised_nodes(column):
        if named != actual:
            raise index.where.bad("summaries", f"a node of the index does not have the bounds and nulls of {column!r}")


def _check_rows(source: Source, section: StridedSection) -> list[Finding]:
    """One finding for each damaged row, up to some: where a run of rows fails, they are read one by one."""
    at_once = max(1, _ROWS_AT_ONCE_BYTES // section.stride)
    findings: list[Finding] = []
    for low in range(0, section.rows, at_once):
        rows = np.arange(low, min(low + at_once, section.rows))
        if list(_run([partial(read_strided_rows, source, section, rows)])):
            steps = (partial(read_strided_rows, source, section, [row]) for row in rows.tolist())
            findings += islice(_run(steps), _FINDINGS_MAX - len(findings))
            if len(findings) == _FINDINGS_MAX:
                break
    return findings


_HEADS_AT_ONCE = 4096

_TOMBSTONES = {block.ENCODING_NONE: "none", block.ENCODING_BITMAP: "bitmap"}
_KEYS = {
    keys.ENCODING_FIXED: "fixed width",
    keys.ENCODING_BUNDLE: "bundle prefix",
    keys.ENCODING_NUMBERS: "numbers",
}
_VALUES = {
    values.ENCODING_ALL_NULL: "all null",
    values.ENCODING_FIXED: "plain",
    values.ENCODING_BITS: "bitmap",
    values.ENCODING_OFFSETS_32: "plain",
    values.ENCODING_OFFSETS_64: "plain",
    values.ENCODING_FRAME: "frame of reference",
    values.ENCODING_CONSTANT_BOOL: "constant",
    values.ENCODING_DICTIONARY: "codes",
    values.ENCODING_NAMES: "names",
    values.ENCODING_PLANES: "frame, in planes",
}
_CODECS = {
    codec.CODEC_RAW: "raw",
    codec.CODEC_ZSTD: "zstd",
    codec.CODEC_ZSTD_HEAD: "zstd, in part",
}


@dataclass(frozen=True)
class SectionCount:
    """The sections of one kind of one encoding and compression.

    section       "tombstones", "keys", or the name of a value column
    position      0 for tombstones, 1 for keys, from 2 on value columns in the order of the schema
    blocks        that have such a section
    stored_bytes  without padding; plain_bytes: before compression
    """

    section: str
    position: int
    encoding: str
    compression: str
    blocks: int
    stored_bytes: int
    plain_bytes: int


@dataclass(frozen=True)
class SizeReport:
    """What a file is made of.

    sections      of all blocks, by position, most bytes first
    parts         every byte of the file by what it is for
    index_levels  of nodes below the footer; nodes: how many
    """

    sections: list[SectionCount]
    parts: dict[str, int]
    index_levels: int
    index_nodes: int


def size_report(source: Source) -> SizeReport:
    """Reads the footer of a file, its index and the heads of its blocks. Raises CorruptionError, FormatVersionError."""
    footer, _ = open_footer(source)
    index = footer.index.reading_by(partial(read_exact, source))
    sections = _count_sections(source, index, footer.schema)
    parts = _bytes_by_part(source.size, footer, index, sections, Where(name_of(source), footer.offset))
    return SizeReport(sections, parts, index.levels, index.node_count)


def _count_sections(source: Source, index: BlockIndex, schema: pa.Schema) -> list[SectionCount]:
    blocks: Counter[tuple[int, int, int]] = Counter()
    stored_bytes: Counter[tuple[int, int, int]] = Counter()
    plain_bytes: Counter[tuple[int, int, int]] = Counter()
    length = HEAD.size + SECTION.size * (2 + len(schema))
    for low in range(0, index.block_count, _HEADS_AT_ONCE):
        offsets = index.spans(range(low, min(low + _HEADS_AT_ONCE, index.block_count))).offsets.tolist()
        for offset, head in zip(
            offsets, read_exact(source, [(place, length) for place in offsets], gap_bytes=0), strict=True
        ):
            if codec.checksum_at(offset, head[4:]) != int.from_bytes(head[:4], "little"):
                raise Where(name_of(source), offset).bad("block checksum", "the checksum of a block does not match")
            for position, (packed_as, encoding, _, stored, plain, _) in enumerate(
                SECTION.iter_unpack(head[HEAD.size :])
            ):
                kind = position, encoding, packed_as
                blocks[kind] += 1
                stored_bytes[kind] += stored
                plain_bytes[kind] += plain
    names = ["tombstones", "keys", *schema.names]
    return [
        SectionCount(
            names[kind[0]],
            kind[0],
            (_TOMBSTONES, _KEYS, _VALUES)[min(kind[0], 2)].get(kind[1], f"encoding {kind[1]}"),
            _CODECS.get(kind[2], f"codec {kind[2]}"),
            blocks[kind],
            stored_bytes[kind],
            plain_bytes[kind],
        )
        for kind in sorted(blocks, key=lambda kind: (kind[0], -stored_bytes[kind], kind))
    ]


def _bytes_by_part(
    size_bytes: int, footer: Footer, index: BlockIndex, sections: Sequence[SectionCount], where: Where
) -> dict[str, int]:
    """The sum is `size_bytes`. Sections and metas of one stem (fine/0, fine/1 ...) count together: there may be
    thousands. Raises CorruptionError where they overlap."""
    parts: Counter[str] = Counter()
    for count in sections:
        parts[f"column {count.section}" if count.position > 1 else count.section] += count.stored_bytes
    parts["heads of blocks"] = index.block_count * HEAD.size + SECTION.size * sum(count.blocks for count in sections)
    for name, section in footer.strided.items():
        parts[f"strided {_stem(name)}"] += section.length_bytes
    for name, piece in footer.metas.items():
        parts[f"meta {_stem(name)}"] += piece.stored
    parts["nodes of the index"] = index.nodes_bytes()
    parts["footer"] = size_bytes - footer.offset - TRAILER.size
    parts["header, trailer, padding"] = size_bytes - sum(parts.values())
    if parts["header, trailer, padding"] < len(HEADER) + TRAILER.size:
        raise where.bad("sizes", "the parts of the file are more than the file")
    return {name: size for name, size in parts.items() if size}


def _stem(name: str) -> str:
    stem, slash, _ = name.partition("/")
    return f"{stem}{slash and '/*'}"
