"""How the values of a column are spread over a table's files: whether bounds can separate files.

The *depth* of a value is the number of files whose [min, max] contains it: a look-up reads them, by bounds alone. It
is taken at four places within each file's range (an eighth of the way, three, five, seven eighths), as if the file's
values were spread evenly over it. Where they are dense, more files share one. The greatest depth is that at any value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base import canon
from ..base.arrays import binary_array, from_numpy, to_numpy
from ..errors import InvalidArgumentError, SchemaError
from . import html
from .parquet.leaves import leaf_type, top_level
from .scan.bounds import bounds_of, texts_of, value_of
from .scan.prune import StatsReader
from .scan.units import units_of
from .state.manifest import SNAPSHOT
from .state.snapshot import Snapshot

_STEPS = (1, 3, 5, 7)  # eighths


@dataclass(frozen=True)
class Layout:
    """The result of `Table.layout`.

    column, type            the column's name and its type in the table
    files                   the files that can contain rows, of the slices that are read
    files_with_bounds       of them, those whose least and greatest values are known
    files_without_values    of them, those in which every row is null or NaN: a look-up of a value skips them
    files_unknown           the rest: every look-up reads them
    lower, upper            the ends of the column's domain, by the bounds of all files: Python values, or pyarrow
                            Scalars if Python has no such value; None if no file has bounds
    depth_mean, depth_p50, depth_p99, depth_max
                            how many files' ranges contain a value (see the module)
    share_read              the share of the files that a look-up of one value reads on average, 0 to 1
    domain                  lower and upper as texts; empty if no file has bounds
    starts, ends            float64 [files_with_bounds]: the range of each file within the domain, from 0 to 1, in
                            order of start, then end
    """

    column: str
    type: pa.DataType
    files: int
    files_with_bounds: int
    files_without_values: int
    files_unknown: int
    lower: Any
    upper: Any
    depth_mean: float
    depth_p50: float
    depth_p99: float
    depth_max: int
    share_read: float
    domain: tuple[str, ...]
    starts: np.ndarray
    ends: np.ndarray

    def __repr__(self) -> str:
        return (
            f"<skipstone.Layout of {self.column!r} over {self.files:,} files: a value is in {self.depth_mean:.1f} of "
            f"them, at most {self.depth_max:,}>"
        )

    def figures(self) -> list[tuple[str, str]]:
        """Return the numbers in words: (name, text)."""
        counts = [f"{_files(self.files_with_bounds)} with bounds"]
        if self.files_without_values:
            counts.append(f"{self.files_without_values:,} without values")
        if self.files_unknown:
            counts.append(f"{self.files_unknown:,} without bounds")
        figures = [("files", ", ".join(counts))]
        if self.files_with_bounds:
            figures.append(("values", f"{self.domain[0]} to {self.domain[1]}"))
            depths = f"mean {self.depth_mean:,.1f}, median {self.depth_p50:,.0f}, 99th percentile {self.depth_p99:,.0f}"
            figures.append(("a value is in", f"{depths}, at most {_files(self.depth_max)}"))
        if self.files:
            figures.append(("a look-up reads", f"{self.share_read:.1%} of the files, by their bounds"))
        return figures

    def _repr_html_(self) -> str:
        return html.page(self.html())

    def html(self) -> str:
        """Return the layout as a part of a page."""
        return (
            html.heading(self.column, f"({self.type}) in {_files(self.files)}")
            + html.ranges(self.starts.tolist(), self.ends.tolist())
            + html.grid(["", ""], self.figures())
        )


def layout_of(snapshot: Snapshot, column: str, strict: bool) -> Layout:
    """See `Table.layout`."""
    kind = _checked_type(snapshot.instant.schema, column)
    units = units_of(snapshot.files(), snapshot.instant.commit_states, SNAPSHOT)
    files = units.files.filter(from_numpy(units.has_rows))
    bounds = bounds_of(StatsReader(snapshot, strict).of_files(column, files), kind, files.num_rows)
    closed = bounds.is_closed & bounds.may_be_value
    lower, upper = bounds.lower.filter(from_numpy(closed)), bounds.upper.filter(from_numpy(closed))
    axis = _Axis(lower, upper, kind)
    depths, depth_max = axis.depths()
    order = np.lexsort((axis.ends, axis.starts))
    count, without = len(lower), int((~bounds.may_be_value).sum())
    mean, unknown = float(depths.mean()) if count else 0.0, files.num_rows - count - without
    return Layout(
        column=column,
        type=kind,
        files=files.num_rows,
        files_with_bounds=count,
        files_without_values=without,
        files_unknown=unknown,
        lower=_python(axis.low, kind),
        upper=_python(axis.high, kind),
        depth_mean=mean,
        depth_p50=float(np.percentile(depths, 50)) if count else 0.0,
        depth_p99=float(np.percentile(depths, 99)) if count else 0.0,
        depth_max=depth_max,
        share_read=(mean + unknown) / files.num_rows if files.num_rows else 0.0,
        domain=tuple(axis.texts(axis.low, axis.high)) if count else (),
        starts=axis.starts[order],
        ends=axis.ends[order],
    )


def _checked_type(schema: pa.Schema, column: str) -> pa.DataType:
    if not isinstance(column, str):
        raise InvalidArgumentError(f"a column is named by its name, not {column!r}")
    kind = leaf_type(schema, column)
    if kind is not None:
        return kind
    try:
        top_level(schema, column)
    except KeyError:
        raise SchemaError(f"no column {column!r}; the table's columns are {', '.join(schema.names)}") from None
    raise SchemaError(f"column {column!r} has no bounds: its type has no order")


def _python(stored: int | bytes | None, kind: pa.DataType) -> Any:
    """Return a bound as a Python value; as bytes if a text was cut within a character."""
    if stored is None:
        return None
    try:
        scalar = value_of(stored, kind)
    except pa.ArrowInvalid:
        return stored
    try:
        return scalar.as_py()
    except (ValueError, ArithmeticError, pa.ArrowException):
        return scalar


class _Axis:
    """A column's domain laid out from 0 to 1.

    starts, ends    float64 [n]: where the range of each file begins and ends
    """

    def __init__(self, lower: pa.Array, upper: pa.Array, kind: pa.DataType):
        self._kind, self._stored, count = kind, lower.type, len(lower)
        self.low, self.high = pc.min(lower).as_py(), pc.max(upper).as_py()
        self.starts, self.ends = np.zeros(count), np.ones(count)
        ordinals = _ordinals(pa.concat_arrays([lower, upper]), kind) if count else np.empty(0, dtype=np.int64)
        self._lower, self._upper = ordinals[:count], ordinals[count:]
        if count and ordinals.min() < ordinals.max():
            width = float(int(ordinals.max()) - int(ordinals.min()))
            # differences first: whole numbers may have more digits than a double
            steps = (ordinals.view(np.uint64) - ordinals.min().view(np.uint64)) / width
            self.starts, self.ends = steps[:count], steps[count:]

    def depths(self) -> tuple[np.ndarray, int]:
        """(int64 [4 n]: the depth at four places in each file's range, the greatest depth at any value)."""
        lower, upper = self._lower, self._upper
        lows, highs = np.sort(lower), np.sort(upper)

        def depth(points: np.ndarray) -> np.ndarray:
            points = np.sort(points)  # faster than to search for them in any order
            return np.searchsorted(lows, points, side="right") - np.searchsorted(highs, points, side="left")

        depths = np.concatenate([depth(_within(lower, upper, step)) for step in _STEPS])
        return depths, int(depth(lows).max(initial=0))

    def texts(self, *bounds: int | bytes) -> list[str]:
        """Bounds as texts for people."""
        return texts_of(pa.concat_arrays([_one(b) for b in bounds]).cast(self._stored), self._kind).to_pylist()


def _one(stored: int | bytes) -> pa.Array:
    return binary_array([stored]) if isinstance(stored, bytes) else from_numpy(np.array([stored], dtype=np.int64))


def _ordinals(bounds: pa.Array, kind: pa.DataType) -> np.ndarray:
    """Return whole numbers in the order of bounds (int64 [n]): the codes of numbers and times; floats in 2**62 equal
    steps; of bytes the eight that follow what all have in common. Return their ranks if a float is infinite, or if
    eight bytes separate too few of them."""
    if pa.types.is_int64(bounds.type) and not pa.types.is_floating(kind):
        return to_numpy(bounds)
    if pa.types.is_int64(bounds.type):
        floats = to_numpy(canon.values_of_codes(to_numpy(bounds), pa.float64())) / 2  # the width may exceed a double
        if np.isfinite(floats).all():
            low, width = floats.min(), floats.max() - floats.min()
            return ((floats - low) / (width or 1.0) * (1 << 62)).astype(np.int64)
    else:
        stored = bounds.to_pylist()
        least, greatest = min(stored), max(stored)
        first = next((i for i, (a, b) in enumerate(zip(least, greatest, strict=False)) if a != b), len(least))
        words = [int.from_bytes(value[first : first + 8].ljust(8, b"\0"), "big") - (1 << 63) for value in stored]
        if 2 * len(set(words)) >= len(set(stored)):
            return np.array(words, dtype=np.int64)
    return to_numpy(pc.rank(bounds, tiebreaker="dense")).astype(np.int64)


def _within(lower: np.ndarray, upper: np.ndarray, step: int) -> np.ndarray:
    """Return the whole number nearest to `step` eighths of the way from lower to upper."""
    width = upper.view(np.uint64) - lower.view(np.uint64)  # wraps to what it is
    eighths, rest = width // np.uint64(8), width % np.uint64(8)
    moved = eighths * np.uint64(step) + (rest * np.uint64(step) + np.uint64(4)) // np.uint64(8)
    return (lower.view(np.uint64) + moved).view(np.int64)


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"
