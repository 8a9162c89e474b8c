"""Very many keys to be found among rows: encoded, sorted, and known by their hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ... import canon
from ...arrays import from_numpy, to_numpy
from ...bloom import hash_array
from ...errors import InvalidArgumentError, SchemaError
from ...hfile_like.key_order import sorted_keys, taken_keys
from ...hfile_like.ordered import OrderedCode
from ..predicates.bound import ColumnRef
from .key_values import doubles_of, values_in_column


@dataclass
class KeySet:
    """Distinct tuples of values, none of them null.

    code       how they are encoded
    columns    the table's columns that they are values of, or whose values as doubles they are
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
        pairs = zip(values, self.code.kinds, strict=True)
        compared = [doubles_of(array) if is_rounded(array.type, kind) else array for array, kind in pairs]
        encoded = self.code.encode(compared)
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


def is_rounded(kind: pa.DataType, compared_as: pa.DataType) -> bool:
    """Whether a column's values are made doubles before they are compared."""
    return pa.types.is_decimal(kind) and pa.types.is_floating(compared_as)


def key_set(keys: pa.Table, kinds: Sequence[pa.DataType]) -> KeySet:
    """The tuples of a table of keys, whose columns bear the names of the table's, of which these are the types. Those
    with a null are no key: null equals nothing. Numbers, timestamps and bytes may be of other types than the columns.

    Raises SchemaError for keys of types that are not compared with the columns', and for a float that is several values
    of a column of decimals.
    """
    columns = []
    for name, kind in zip(keys.column_names, kinds, strict=True):
        ref = ColumnRef(name, (name,), canon.compared_type(kind), canon.is_uuid(kind))
        column = values_in_column(keys.column(name), ref, reads_text=False)
        if is_rounded(kind, column.type):
            raise SchemaError(f"keys of {name!r} are floats, of which one is several values of {kind}: cast them to it")
        columns.append(column)
    return key_set_of(pa.table(columns, names=keys.column_names), kinds)


def key_set_of(keys: pa.Table, kinds: Sequence[pa.DataType]) -> KeySet:
    """`key_set` of keys that `values_in_column` gave, of the columns' classes or doubles beside decimals."""
    columns = keys.columns
    code = OrderedCode(
        [pa.float64() if is_rounded(kind, c.type) else kind for c, kind in zip(columns, kinds, strict=True)]
    )
    whole = np.logical_and.reduce([to_numpy(column.is_valid()) for column in columns])
    given = np.flatnonzero(whole)
    if len(given) < len(whole):
        columns = [column.filter(from_numpy(whole)) for column in columns]
    encoded = code.encode(columns)
    order, is_again = sorted_keys(encoded)
    order = order[~is_again]
    return KeySet(code, keys.column_names, taken_keys(encoded, order), given[order])


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
