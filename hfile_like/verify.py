"""Checking a whole file: what `SortedFileReader.verify` finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ..errors import CorruptionError, InvalidArgumentError
from .codec import Where
from .entries import check_ascending
from .file import HEADER, check_header
from .index import BlockIndex
from .open_file import OpenFile
from .source import Source, read_exact
from .strided import StridedSection, read_strided_rows
from .summaries import summarise

T = TypeVar("T")

_ROWS_AT_ONCE_BYTES = 1 << 20


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
