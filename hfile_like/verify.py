"""Checking a whole file: what `SortedFileReader.verify` finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from ..errors import CorruptionError, InvalidArgumentError
from .codec import Where
from .entries import check_ascending
from .footer import HEADER, check_header
from .index import BlockIndex
from .source import Source, read_exact
from .strided import StridedSection, read_strided_rows
from .summaries import summarise

if TYPE_CHECKING:
    from .reader import SortedFileReader

T = TypeVar("T")

_ROWS_AT_ONCE_BYTES = 1 << 20


@dataclass(frozen=True)
class Finding:
    """Something wrong: which check, where (bytes, or None), and what it is in words."""

    check: str
    offset: int | None
    message: str


def findings_of(reader: SortedFileReader, source: Source, index: BlockIndex) -> list[Finding]:
    """Every finding of a file, part by part: damage in one does not hide another."""
    steps: list[Callable[[], object]] = [partial(_check_header, reader, source)]
    steps += [partial(_check_block, reader, index, i) for i in range(index.block_count)]
    steps += [partial(_check_nodes, index, name) for name in index.summarised]
    steps += [reader.groups, lambda: reader.properties, lambda: reader.dictionary, reader.key_filter_bytes]
    findings = list(_run(steps))
    for section in _or_nothing(reader.strided_sections, findings):
        findings += _check_rows(source, section)
    for name in _or_nothing(reader.metas, findings):
        findings += _run([partial(reader.meta, name)])
    return findings


def _run(steps: Iterable[Callable[[], object]]) -> Iterator[Finding]:
    for step in steps:
        try:
            step()
        except CorruptionError as error:
            yield Finding(error.check or "unknown", error.offset, str(error))


def _or_nothing(table: Callable[[], dict[str, T] | list[T]], findings: list[Finding]) -> list[T]:
    held: list[T] = []

    def read() -> None:
        found = table()
        held.extend(found.values() if isinstance(found, dict) else found)

    findings += _run([read])
    return held


def _check_header(reader: SortedFileReader, source: Source) -> None:
    check_header(read_exact(source, [(0, len(HEADER))])[0], reader.name)


def _check_block(reader: SortedFileReader, index: BlockIndex, i: int) -> None:
    info, block = index.block(i), reader.block(i)
    decoded = block.keys.to_arrow()
    where = Where(reader.name, info.offset)
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
    for position, name in enumerate(reader.schema.names):
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
    for named, held in index.summarised_nodes(column):
        if named != held:
            raise index.where.bad("summaries", f"a node of the index does not have the bounds and nulls of {column!r}")


def _check_rows(source: Source, section: StridedSection) -> list[Finding]:
    """One finding for each damaged row: where a run of rows fails, they are read one by one."""
    at_once = max(1, _ROWS_AT_ONCE_BYTES // section.stride)
    findings: list[Finding] = []
    for low in range(0, section.rows, at_once):
        rows = np.arange(low, min(low + at_once, section.rows))
        if list(_run([partial(read_strided_rows, source, section, rows)])):
            findings += _run([partial(read_strided_rows, source, section, [row]) for row in rows.tolist()])
    return findings
