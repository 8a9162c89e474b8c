"""Check every byte of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

import numpy as np
import pyarrow as pa

from ..errors import CorruptionError, InvalidArgumentError
from .block_index import bounds_of
from .block_reader import BlockReader
from .codec import Location
from .entries import check_ascending
from .footer import HEADER, RowTable, check_header
from .rows import read_rows
from .source import Source, read_exact

T = TypeVar("T")

_ROWS_AT_ONCE_BYTES = 1 << 20
_FINDINGS_MAX = 1000  # of one row table: more are useless if it is damaged throughout


@dataclass(frozen=True)
class Finding:
    """A problem: which check failed, where (bytes, or None), and a message."""

    check: str
    offset: int | None
    message: str


def findings_of(reader: BlockReader) -> list[Finding]:
    """Return every finding of a file, part by part: damage in one part must not hide another."""
    reader.check_open()
    footer = reader.footer
    steps: list[Callable[[], object]] = [
        lambda: check_header(read_exact(reader.source, [(0, len(HEADER))])[0], reader.name),
        *(partial(_check_block, reader, i) for i in range(reader.num_blocks)),
        lambda: footer.groups,
    ]
    findings = list(_run(steps))
    for section in _or_nothing(lambda: list(footer.row_tables.values()), findings):
        findings += _check_rows(reader.source, section)
    for name in _or_nothing(lambda: list(footer.metas), findings):
        findings += _run([partial(reader.meta, name)])
    return findings


def _run(steps: Iterable[Callable[[], object]]) -> Iterator[Finding]:
    for step in steps:
        try:
            step()
        except CorruptionError as error:
            yield Finding(error.check or "unknown", error.offset, str(error))


def _or_nothing(table: Callable[[], list[T]], findings: list[Finding]) -> list[T]:
    """Return the rows of a table of the footer; if it is damaged, none, and add a finding."""
    names: list[T] = []
    findings += _run([lambda: names.extend(table())])
    return names


def _check_block(reader: BlockReader, i: int) -> None:
    index = reader.index
    (info,), block = index.infos(i, i + 1), next(reader.read_blocks([i]))
    keys = block.keys.to_arrow()
    location = Location(reader.name, info.offset)
    try:
        check_ascending(keys, index.last_key(i - 1) if i else None)
    except InvalidArgumentError as error:
        raise location.corruption("key order", f"block {i}: {error}") from None
    if (keys[0].as_py(), keys[-1].as_py()) != (info.first_key, info.last_key):
        message = f"block {i} does not begin and end with the keys that the index names"
        raise location.corruption("key order", message)
    deleted = block.deleted()
    if (0 if deleted is None else int(deleted.sum())) != info.deleted:
        message = f"block {i} does not have the {info.deleted} tombstones that the index names"
        raise location.corruption("tombstones", message)
    for position, name in enumerate(reader.schema.names):
        column = block.column(position).to_arrow()
        try:
            column.validate()
        except pa.ArrowInvalid as error:
            raise location.corruption("values", f"block {i}: column {name!r} is no array ({error})") from None
        zone_map = index.zone_map(name)
        if zone_map is not None and bounds_of(column, deleted) != zone_map.sliced(i, i + 1).rows()[0]:
            message = f"block {i} does not have the bounds and nulls of {name!r} that the index names"
            raise location.corruption("summaries", message)


def _check_rows(source: Source, section: RowTable) -> list[Finding]:
    """Return one finding per damaged row, up to a limit: rows are read one by one if some of a range fail."""
    at_once = max(1, _ROWS_AT_ONCE_BYTES // section.stride)
    findings: list[Finding] = []
    for low in range(0, section.rows, at_once):
        rows = np.arange(low, min(low + at_once, section.rows))
        if list(_run([partial(read_rows, source, section, rows)])):
            steps = (partial(read_rows, source, section, [row]) for row in rows.tolist())
            findings += islice(_run(steps), _FINDINGS_MAX - len(findings))
            if len(findings) == _FINDINGS_MAX:
                break
    return findings
