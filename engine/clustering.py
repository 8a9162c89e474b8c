"""The order in which clustering writes rows, and where it is cut into files: both learnt from a sample of the rows.

A `RowOrder` makes one key a row, and rows are laid down by their keys:

    linear             by the first column, if that is equal by the second, and so on: exactly, and best for the
                       first. Nulls come before all values, NaN after all numbers, as in Spark
    zorder, hilbert    along a curve through a grid, good for each of a few columns. A column's levels in
                       the grid are *ranks*: which share of the sampled rows is below the value, so crowded values,
                       strings with a common prefix and columns of two values spread over the whole grid, too

`Buckets` cut the keys into ranges of about as many rows. Keys that are rarer than a bucket are never parted; of a key
that alone fills several, the rows are dealt out over these in turn.

What is learnt is small whatever the rows are, since every executor gets it.

A cell of a grid of k dimensions, each of 2**bits levels, has one place along a curve: a whole number of k * bits bits.

    morton     (z-order) the levels' bits dealt out in turn. Cheap; its neighbours may be far apart in the grid
    hilbert    every step along it leads to a neighbour in the grid, so a stretch of it is a more compact region, and
               its range in each column narrower. Found by Skilling's transform ("Programming the Hilbert curve", 2004)

Both visit every cell once. Of one dimension they are the level itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..base import canon
from ..base.arrays import binary_array, empty_bytes, from_numpy, to_numpy, valid_mask
from ..base.ordered_keys import OrderedCode
from ..errors import InvalidArgumentError, SchemaError

LINEAR = "linear"
_CURVE_BITS = 64
_BITS_A_COLUMN = 12
_CUT_BYTES_MAX = 128 << 10  # a column's

Keys: TypeAlias = np.ndarray | pa.BinaryArray  # uint64 [n], or binary [n]: they compare as rows are laid down


def morton(levels: Sequence[np.ndarray], bits: int) -> np.ndarray:
    """uint64 [n]: the place of each cell along the z-order curve.

    Args:
        levels: a dimension each, the most significant first: uint64 [n], below 2**bits. At most 64 bits in all.
    """
    places = np.zeros_like(levels[0])
    one = np.uint64(1)
    for bit in reversed(range(bits)):
        for level in levels:
            places <<= one
            places |= (level >> np.uint64(bit)) & one
    return places


def hilbert(levels: Sequence[np.ndarray], bits: int) -> np.ndarray:
    """uint64 [n]: the place of each cell along the Hilbert curve. Arguments as for `morton`."""
    axes = [level.copy() for level in levels]
    first, last = axes[0], axes[-1]
    for bit in reversed(range(1, bits)):
        low = np.uint64((1 << bit) - 1)
        for axis in axes:  # where the bit is set the first axis is turned round below it, elsewhere they change places
            is_set = (axis >> np.uint64(bit)) & np.uint64(1) != 0
            swapped = np.where(is_set, np.uint64(0), (first ^ axis) & low)
            first ^= np.where(is_set, low, swapped)
            if axis is not first:
                axis ^= swapped
    for before, axis in pairwise(axes):
        axis ^= before
    turned = np.zeros_like(first)
    for bit in reversed(range(1, bits)):
        is_set = (last >> np.uint64(bit)) & np.uint64(1)
        turned ^= is_set * np.uint64((1 << bit) - 1)
    for axis in axes:
        axis ^= turned
    return morton(axes, bits)


CURVES: dict[str, Callable[[Sequence[np.ndarray], int], np.ndarray]] = {"zorder": morton, "hilbert": hilbert}
ORDERS = (LINEAR, *CURVES)


class RowOrder:
    """Makes the keys of rows. Picklable.

    Args:
        curve: one of ORDERS.
        sample: rows of the columns to cluster by, in that order; those of a curve learn their ranks from them.

    Raises InvalidArgumentError for a curve that is unknown, or of more than 64 columns, SchemaError for a column whose
    type has no order.
    """

    def __init__(self, curve: str, sample: pa.Table):
        if curve not in ORDERS:
            raise InvalidArgumentError(f"curve= is one of {', '.join(ORDERS)}, not {curve!r}")
        check_columns(sample.schema)
        self.columns = sample.column_names
        self._kinds = [field.type for field in sample.schema]
        self._curve = curve if len(self.columns) > 1 else LINEAR  # a curve through one dimension is that dimension
        self._ranks: list[_Ranks] = []
        if self._curve != LINEAR:
            if len(self.columns) > _CURVE_BITS:
                raise InvalidArgumentError(
                    f"a curve goes through at most {_CURVE_BITS} columns, not {len(self.columns)}"
                )
            self._bits = min(_BITS_A_COLUMN, _CURVE_BITS // len(self.columns))
            self._ranks = [_Ranks(canon.flatten(sample.column(name)), self._bits) for name in self.columns]

    def keys(self, rows: pa.Table) -> Keys:
        """A key a row, from the columns clustered by, whatever others there are."""
        columns = [canon.flatten(rows.column(name)) for name in self.columns]
        if self._curve == LINEAR:
            return OrderedCode(self._kinds).encode(columns)
        levels = [ranks.levels(column) for ranks, column in zip(self._ranks, columns, strict=True)]
        return CURVES[self._curve](levels, self._bits)


def check_columns(columns: pa.Schema) -> None:
    """Raises SchemaError for a column whose type has no order."""
    for field in columns:
        if canon.order_class(field.type) is None:
            raise SchemaError(f"column {field.name!r} is {field.type}, which has no order to cluster by")


def sorted_by(keys: Keys) -> np.ndarray:
    """int64 [n]: the places of rows in the order of their keys; rows of one key stay in theirs."""
    if isinstance(keys, np.ndarray):
        return np.argsort(keys, kind="stable")
    return to_numpy(pc.array_sort_indices(keys)).astype(np.int64)


class Buckets:
    """Ranges of keys that contain about equally many rows each. Picklable.

    Args:
        keys: of sampled rows, in any order.
        count: how many ranges, from 1 on.
    """

    def __init__(self, keys: Keys, count: int):
        self.count = count
        places = np.arange(1, count) * len(keys) // count
        self._cuts = _cuts_at(keys, sorted_by(keys), places)

    def of(self, keys: Keys, first: int = 0) -> np.ndarray:
        """int64 [n]: each row's bucket, from 0 on; no lesser one for a greater key. But rows of a key that fills
        several are dealt out over them in turn, as if `first` rows had been dealt out before."""
        below, upto = _places_of(keys, self._cuts)
        alone = np.maximum(upto - below - 1, 1)  # so many buckets contain nothing else
        turn = np.arange(first, first + len(below)) % alone
        return np.where(upto - below > 1, below + 1 + turn, upto)


class Placement:
    """Which bucket, and so which file, each row of a rewrite goes to. Picklable.

    Partitions of the table are numbered from 0 on. Rows of two never meet in a bucket: one of many rows becomes several
    files, a bucket belongs to one of them, and what is one *lane* is written by one task: a file, or some small
    partitions, of a file each.

    Args:
        keys: of sampled rows, by partition; of those that become one bucket they are not needed.
        rows: of each partition, about.
        file_rows: how many rows a file shall have, about.
        bucket_rows: how many rows a bucket shall have, about: so many are sorted in memory.

    lanes         int32: the lane of each bucket, ascending
    lane_count    how many lanes there are
    """

    def __init__(self, keys: Mapping[int, Keys], rows: Sequence[int], file_rows: int, bucket_rows: int):
        lanes: list[int] = []
        firsts: list[int] = []
        self._cut: dict[int, Buckets] = {}
        lane, waiting = 0, 0  # rows of small partitions in the lane that is being filled
        for number, row_count in enumerate(rows):
            files = max(1, round(row_count / file_rows))
            each = max(1, -(-row_count // (files * bucket_rows)))
            firsts.append(len(lanes))
            if waiting and (files > 1 or waiting + row_count > file_rows):
                lane, waiting = lane + 1, 0
            for _ in range(files - 1):
                lanes += [lane] * each
                lane += 1
            lanes += [lane] * each
            waiting += row_count
            if files > 1:
                lane, waiting = lane + 1, 0
            if files * each > 1:
                self._cut[number] = Buckets(keys[number], files * each)
        self._firsts = np.array(firsts, dtype=np.int64)
        self.lanes = np.array(lanes, dtype=np.int32)
        self.lane_count = int(self.lanes[-1]) + 1 if lanes else 0

    def partition_of(self, bucket: int) -> int:
        """The partition to which a bucket belongs."""
        return int(np.searchsorted(self._firsts, bucket, side="right")) - 1

    def buckets_of(self, partition: int, keys: Keys, first: int = 0) -> np.ndarray:
        """int64 [n]: the bucket of each row of a partition; `first` as in `Buckets.of`."""
        cut = self._cut.get(partition)
        buckets = np.zeros(len(keys), dtype=np.int64) if cut is None else cut.of(keys, first)
        return buckets + self._firsts[partition]


class _Ranks:
    """The levels of one column's values: whole numbers below 2**bits, none lesser for a greater value; null is least.

    A level is the share of the sampled rows that are below the value, in parts of 2**bits; the middle of its own share
    where many rows have it, so that the levels of a column of two values are far apart.
    """

    def __init__(self, sample: pa.Array, bits: int):
        self._kind = sample.type
        present = self._ordered(sample.drop_null())
        order = sorted_by(present)
        for fewer in range(bits, 0, -1):
            self._shift = np.uint64(bits - fewer)
            places = np.arange(1, 1 << fewer) * len(sample) // (1 << fewer)
            self._cuts_of_nulls = int((places < sample.null_count).sum())
            self._cuts = _cuts_at(present, order, places[self._cuts_of_nulls :] - sample.null_count)
            if self._cuts.nbytes <= _CUT_BYTES_MAX:
                break

    def levels(self, values: pa.Array) -> np.ndarray:
        """uint64 [n]."""
        below, upto = _places_of(self._ordered(values), self._cuts)
        levels = self._cuts_of_nulls + (below + upto) // 2
        valid = valid_mask(values)
        if valid is not None:
            levels = np.where(valid, levels, self._cuts_of_nulls // 2)
        return levels.astype(np.uint64) << self._shift

    def _ordered(self, values: pa.Array) -> Keys:
        """What compares as the values do; anything for a null."""
        if canon.order_class(self._kind) == "code":
            return canon.order_codes(values).view(np.uint64) ^ canon.SIGN_BIT
        stored = canon.order_bytes(values)
        return stored.fill_null(empty_bytes()) if stored.null_count else stored


def _cuts_at(keys: Keys, order: np.ndarray, places: np.ndarray) -> Keys:
    """The keys at some places of their order, ascending; none if there are no keys. Binary ones are cut to what
    distinguishes them from the key before, except those that several cuts fall on."""
    if not len(keys):
        return keys
    if isinstance(keys, np.ndarray):
        return keys[order[places]]
    cuts = keys.take(from_numpy(order[places])).to_pylist()
    before = keys.take(from_numpy(order[np.maximum(places - 1, 0)])).to_pylist()
    shared = {key for key, then in pairwise(cuts) if key == then}
    return binary_array(
        [key if key in shared else _shortest_above(b, key) for b, key in zip(before, cuts, strict=True)]
    )


def _shortest_above(before: bytes, key: bytes) -> bytes:
    """The shortest beginning of a key that is greater than the one before it; all of it if they are equal."""
    same = next(
        (position for position, (one, other) in enumerate(zip(before, key, strict=False)) if one != other), len(before)
    )
    return key[: same + 1]


def _places_of(keys: Keys, cuts: Keys) -> tuple[np.ndarray, np.ndarray]:
    """(how many cuts are less than each key, how many are not greater), int64 [n] each."""
    if isinstance(keys, np.ndarray):
        return np.searchsorted(cuts, keys), np.searchsorted(cuts, keys, side="right")
    encoded = keys.dictionary_encode()
    both = pc.rank(pa.concat_arrays([cuts, encoded.dictionary]), tiebreaker="dense")
    ranks = to_numpy(both).astype(np.int64)
    cut_ranks, wanted, of_row = ranks[: len(cuts)], ranks[len(cuts) :], to_numpy(encoded.indices)
    return np.searchsorted(cut_ranks, wanted)[of_row], np.searchsorted(cut_ranks, wanted, side="right")[of_row]
