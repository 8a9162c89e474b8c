"""What tests need newer libraries than the oldest that are supported (`make floors` runs them with these)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from skipstone.base.versions import accepted


def version_of(library: str) -> tuple[int, ...]:
    """(major, minor) of an installed library; (0, 0) if it is not installed."""
    try:
        return tuple(int(part) for part in re.findall(r"\d+", metadata.version(library))[:2])
    except metadata.PackageNotFoundError:
        return (0, 0)


def has(library: str, *minimum: int) -> bool:
    return version_of(library) >= minimum


def needs(library: str, *minimum: int, what: str) -> pytest.MarkDecorator:
    """Skips a test, or a case of one, with an older library."""
    reason = f"{what}: {library} {'.'.join(map(str, minimum))} or newer"
    return pytest.mark.skipif(not has(library, *minimum), reason=reason)


def parquet_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of pyarrow's writer without those that the installed one lacks: older ones write no filters."""
    return accepted(pq.ParquetWriter.__init__, **options) if "bloom_filter_options" in options else options


def array_of(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
    """`pa.array`. pyarrow 20 and older make half floats of numpy's alone."""
    if pa.types.is_float16(kind):
        values = [None if value is None else np.float16(value) for value in values]
    return pa.array(values, kind)


def cases(values: Iterable[Any], newer: Sequence[Any], library: str, *minimum: int) -> list[Any]:
    """Cases of a test of which some, the `newer`, need a newer library: skipped, or appended, if they are not there."""
    listed = list(values)
    mark = needs(library, *minimum, what="a newer type")
    return [pytest.param(v, marks=mark) if v in newer else v for v in [*listed, *(n for n in newer if n not in listed)]]
