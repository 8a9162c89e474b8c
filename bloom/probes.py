"""The hashes with which a filter is probed for values.

A filter records what it hashed, and is probed in that form or not at all. The canonical hash needs one probe per value.
Under Parquet's, zero is probed with both signs, because -0.0 equals 0.0 and its bytes differ. NaN is not probed,
because its bytes may be any of millions: it counts as contained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..base import canon
from ..base.arrays import valid_mask
from ..errors import InvalidArgumentError
from . import numpy_filter
from .hashing import (
    PARQUET_PREFIX,
    checked_blocks,
    checked_hashes,
    hash_array,
    hash_fixed,
    hash_raw,
    hash_wide,
    plain_type,
    raw_floats,
)

_DECIMAL = "decimal:"


@dataclass(frozen=True)
class Probes:
    """The hashes to look up for n values.

    hashes      uint64 [n]
    other_hashes  uint64 [n], other hashes that the same values may have; None if there are none
    absent      bool [n], True if no value of the filter's kind equals this one; None if there is none
    absent      bool [n], True if no value of the filter's kind equals this one; None if there is none
    unknown     bool [n], True if the filter cannot decide; None if there is none
    """

    hashes: np.ndarray
    valid: np.ndarray | None = None
    other_hashes: np.ndarray | None = None
    absent: np.ndarray | None = None
    unknown: np.ndarray | None = None

    @property
    def all_hashes(self) -> np.ndarray:
        """Return uint64 [n] or [2n]: every hash to look up."""
        return self.hashes if self.other_hashes is None else np.concatenate([self.hashes, self.other_hashes])

    def any_of(self) -> np.ndarray | None:
        """Return uint64: the hashes to look up if one match suffices; None if the filter cannot decide."""
        if self.unknown is not None and self.unknown.any():
            return None
        if self.absent is None:
            return self.all_hashes
        present = ~self.absent
        return self.all_hashes[present if self.other_hashes is None else np.tile(present, 2)]

    def hits_of_values(self, hits: np.ndarray) -> np.ndarray:
        """Return bool [n, members]: the hits of the values, from those of `all_hashes`."""
        count = len(self.hashes)
        return self.fill_known(hits if self.other_hashes is None else hits[:count] | hits[count:])

    def fill_known(self, hits: np.ndarray) -> np.ndarray:
        """Return the hits, bool [n] or [n, members], and fill in those that need no look-up. Nulls stay unchanged."""
        if self.absent is not None:
            hits[self.absent] = False
        if self.unknown is not None:
            hits[self.unknown] = True
        return hits


def probe_together(several: Sequence[Probes], hits_of: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Return the hits of each of several, by one call of `hits_of` (hashes, uint64 [n] -> bool [n, members])."""
    hashes = [probes.all_hashes for probes in several]
    hits = hits_of(np.concatenate(hashes))
    ends = np.cumsum([len(part) for part in hashes])
    return [probes.hits_of_values(part) for probes, part in zip(several, np.split(hits, ends[:-1]), strict=True)]


def probes_for(values: pa.Array | pa.ChunkedArray, name: str) -> Probes:
    """Return the look-ups for a filter whose hash has that name.

    A decimal is rescaled exactly to the filter's scale; one that has no exact form there is absent. No other value is
    converted between kinds: the caller casts, because only the caller can decide which equality is meant.

    Raises:
        InvalidArgumentError: values of a kind that this filter does not contain, or that cannot be hashed.
    """
    arrow_type = plain_type(values)
    if pa.types.is_null(arrow_type):
        return Probes(np.zeros(len(values), dtype=np.uint64), np.zeros(len(values), dtype=bool))
    if name.startswith(PARQUET_PREFIX):
        physical = name.removeprefix(PARQUET_PREFIX)
        if physical in ("FLOAT", "DOUBLE") and pa.types.is_floating(arrow_type):
            return _float_probes(canon.flatten(values), physical)
        hashed = hash_raw(values, name)
        return Probes(hashed.hashes, hashed.valid)
    hash_name = canon.hash_name(arrow_type)
    if hash_name == name or hash_name is None:
        hashed = hash_array(values)
        return Probes(hashed.hashes, hashed.valid)
    if hash_name.startswith(_DECIMAL) and name.startswith(_DECIMAL):
        return _decimal_probes(
            canon.flatten(values), int(hash_name.removeprefix(_DECIMAL)), int(name.removeprefix(_DECIMAL))
        )
    raise InvalidArgumentError(
        f"values of type {arrow_type} (hashed as {hash_name!r}) do not fit a filter of {name!r}: cast them to the "
        "type of the column that the filter was built from"
    )


def _float_probes(array: pa.Array, physical: str) -> Probes:
    values, is_exact = raw_floats(array, physical)
    is_zero = values == 0
    return Probes(
        hash_fixed(values),
        valid_mask(array),
        other_hashes=hash_fixed(np.where(is_zero, -values, values)) if is_zero.any() else None,
        absent=None if is_exact.all() else ~is_exact,
        unknown=np.isnan(values),
    )


def _decimal_probes(array: pa.Array, scale: int, filter_scale: int) -> Probes:
    """Rescale exactly in Python's integers: Arrow's rescale refuses a whole array for one value that does not fit."""
    form = canon.hash_form(array)
    assert form.wide is not None
    absent = np.zeros(len(array), dtype=bool)
    rescaled = []
    factor = 10 ** abs(filter_scale - scale)
    for i, row in enumerate(form.wide):
        unscaled = int.from_bytes(row.tobytes(), "little", signed=True)
        if filter_scale >= scale:
            unscaled *= factor
        else:
            unscaled, rest = divmod(unscaled, factor)
            absent[i] = rest != 0
        if not -(1 << 255) <= unscaled < 1 << 255:
            absent[i], unscaled = True, 0
        rescaled.append(unscaled.to_bytes(32, "little", signed=True))
    rows = np.frombuffer(b"".join(rescaled), dtype=np.uint8).reshape(-1, 32)
    return Probes(hash_wide(rows), form.valid, absent=absent)


def bucket_of(hashes: np.ndarray, blocks: int) -> np.ndarray:
    """Return int64 [n]: the row of a part of that many blocks that each hash, uint64 [n], touches."""
    return numpy_filter.bucket_of(checked_hashes(hashes), checked_blocks(blocks))


def probe_rows(rows: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Probe rows that were read separately: the selective probe of drivers and executors.

    Args:
        rows: uint8 [k, members * 32]; row i is the row of `bucket_of(hashes, blocks)[i]`.
        hashes: uint64 [k].

    Returns:
        bool [k, members]: True if the member may contain the value of hash i.

    Raises:
        InvalidArgumentError: shapes or types that do not fit.
    """
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] % 32:
        raise InvalidArgumentError("rows must be a numpy array of uint8 [k, members * 32]")
    hashes = checked_hashes(hashes)
    if len(rows) != len(hashes):
        raise InvalidArgumentError(f"{len(rows)} rows for {len(hashes)} hashes: there must be a row for each")
    return numpy_filter.may_contain(
        as_words(rows).reshape(len(rows), rows.shape[1] // 32, numpy_filter.WORDS_PER_BLOCK), hashes
    )


def as_words(rows: np.ndarray) -> np.ndarray:
    """Return the rows of filters as words of 32 bits."""
    words = np.ascontiguousarray(rows).view("<u4")
    return words if words.flags.aligned else words.copy()
