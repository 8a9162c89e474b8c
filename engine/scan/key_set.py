"""Very many keys to be found among rows: encoded, sorted, and known by their hashes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, to_numpy
from ...bloom import hash_array
from ...errors import InvalidArgumentError, SchemaError
from ...hfile_like.key_order import sorted_keys, taken_keys
from ...hfile_like.ordered import OrderedCode, ordered_class


@dataclass
class KeySet:
    """Distinct tuples of values, none of them null.

    code       how they are encoded
    columns    the table's columns that they are values of
    encoded    ascending, each once
    place      int64: of each, the row of the keys as they were given (the first of equal ones)
    """

    code: OrderedCode
    columns: list[str]
    encoded: pa.BinaryArray
    place: np.ndarray

    def __post_init__(self) -> None:
        hashes = hash_array(self.encoded).hashes
        self._order = np.argsort(hashes)
        self._hashes = hashes[self._order]
        again = np.flatnonzero(self._hashes[1:] == self._hashes[:-1]) if len(hashes) else np.empty(0, dtype=np.int64)
        # Keys of one hash, should there ever be some: these are compared as they are.
        self._alike = {self.encoded[int(i)].as_py() for i in self._order[np.union1d(again, again + 1)]}

    def __len__(self) -> int:
        return len(self.encoded)

    def contains(self, values: Sequence[pa.Array | pa.ChunkedArray]) -> np.ndarray:
        """bool [n]: the tuple of `values`, a column each, is one of the keys."""
        encoded = self.code.encode(values)
        found = np.zeros(len(encoded), dtype=bool)
        if not len(self) or not len(encoded):
            return found
        hashes = hash_array(encoded).hashes
        at = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        maybe = np.flatnonzero(self._hashes[at] == hashes)
        mine, others = taken_keys(encoded, maybe), taken_keys(self.encoded, self._order[at[maybe]])
        found[maybe] = to_numpy(pc.equal(mine, others))
        for i in maybe[~found[maybe]].tolist() if self._alike else ():
            found[i] = encoded[i].as_py() in self._alike
        return found


def key_set(keys: pa.Table, kinds: Sequence[pa.DataType]) -> KeySet:
    """The tuples of a table of keys, whose columns bear the names and hold values of the types of the table's (or of
    others of their class). Those with a null are no key: null equals nothing.

    Raises SchemaError for keys of types that are not compared with the columns'.
    """
    columns = []
    for name, kind in zip(keys.column_names, kinds, strict=True):
        column = keys.column(name)
        if ordered_class(column.type) != ordered_class(kind):
            column = _as_kind(column, kind, name)
        columns.append(column)
    code = OrderedCode(kinds)
    whole = np.logical_and.reduce([to_numpy(column.is_valid()) for column in columns])
    given = np.flatnonzero(whole)
    if len(given) < len(whole):
        columns = [column.filter(from_numpy(whole)) for column in columns]
    encoded = code.encode(columns)
    order, is_again = sorted_keys(encoded)
    order = order[~is_again]
    return KeySet(code, list(keys.column_names), taken_keys(encoded, order), given[order])


def _as_kind(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.ChunkedArray:
    """Numbers, and instants, as the column's type has them; null where that is no value of it: it equals none there."""
    alike = any(is_one(column.type) and is_one(kind) for is_one in (_is_number, pa.types.is_timestamp))
    try:
        if not alike:
            raise pa.ArrowNotImplementedError("they are not compared")
        with contextlib.suppress(pa.ArrowInvalid):
            return column.cast(kind)
        there = column.cast(kind, safe=False)
        same = pc.equal(there.cast(column.type, safe=False), column)
        if _is_number(kind):  # what wraps around comes back as it was
            is_below, was_below = (pc.less(part, pa.scalar(0, part.type)) for part in (there, column))
            same = pc.and_(same, pc.equal(is_below, was_below))
        return pc.if_else(same, there, pa.scalar(None, kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"keys of {name!r} are {column.type}, the column is {kind}: cast them ({str(error).splitlines()[0]})"
        ) from None


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def keys_table(keys: object, on: str | Sequence[str] | None) -> pa.Table:
    """Keys as people have them, as a table of the columns that they are sought in: a table, batch, or whatever speaks
    the Arrow C stream (then `on` chooses columns, all by default), or an array, or a list, of values of the one column
    `on`."""
    names = None if on is None else [on] if isinstance(on, str) else list(on)
    table = _table(keys, names)
    missing = [name for name in names or [] if name not in table.column_names]
    if missing:
        raise SchemaError(f"the keys have no column {missing[0]!r}; they have {', '.join(table.column_names)}")
    found = table if names is None else table.select(names)
    if not found.num_columns or len(set(found.column_names)) < found.num_columns:
        raise InvalidArgumentError("keys need one column or more, each of another name")
    return found


def _table(keys: Any, names: list[str] | None) -> pa.Table:
    if isinstance(keys, pa.Table):
        return keys
    if isinstance(keys, pa.RecordBatch):
        return pa.Table.from_batches([keys])
    if not isinstance(keys, (pa.Array, pa.ChunkedArray)) and hasattr(keys, "__arrow_c_stream__"):
        return pa.table(keys)
    if names is None or len(names) != 1:
        raise InvalidArgumentError("keys that are values of one column need its name: on=")
    if not isinstance(keys, (pa.Array, pa.ChunkedArray)):
        try:
            keys = pa.array(keys)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"keys are a table, or an array of values: {error}") from None
    return pa.table({names[0]: keys})
