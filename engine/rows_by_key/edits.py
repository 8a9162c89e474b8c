"""What happens to the rows of one file: an edit says which rows change, and what they become."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.arrays import from_numpy, null_as_false, to_numpy
from ...errors import InvalidArgumentError, SchemaError
from ..parquet.leaves import leaf_types
from ..predicates import Node
from ..predicates.rows import matches
from ..scan.keys import KeySet, encoded_keys, key_set
from ..tasks.writer import fitted


@dataclass(frozen=True)
class Edited:
    """Rows after an edit.

    count      how many rows were deleted or updated
    rows       what is left of them, in the table's schema
    changed    int64, ascending: the positions in `rows` of rows that have new values
    """

    count: int
    rows: pa.Table
    changed: np.ndarray


class NamedRows(NamedTuple):
    """Rows with a key.

    rows           int64, ascending: their positions
    source_rows    int64: the row of the source that has the key of each; None if only an index named the rows
    """

    rows: np.ndarray
    source_rows: np.ndarray | None = None

    def within(self, first: int, count: int) -> NamedRows:
        """Those of `count` rows from `first` on, by their positions among these."""
        part = slice(*np.searchsorted(self.rows, [first, first + count]))
        return NamedRows(self.rows[part] - first, None if self.source_rows is None else self.source_rows[part])


class Edit(Protocol):
    """Changes some rows of a file. Picklable, so that other processes can apply it.

    deletes    whether rows go: a file whose rows all go need not be read
    updated    the columns that get new values
    """

    @property
    def deletes(self) -> bool: ...
    @property
    def updated(self) -> tuple[str, ...]: ...

    def apply(self, rows: pa.Table, named: NamedRows | None = None) -> Edited:
        """Edits rows of the table's schema. `named`: the rows that are known to change; no others do."""
        ...


NO_ROWS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class DeleteMatches:
    """Deletes the rows for which a bound predicate is TRUE."""

    bound: Node
    deletes = True
    updated: tuple[str, ...] = ()

    def apply(self, rows: pa.Table, named: NamedRows | None = None) -> Edited:
        is_deleted = null_as_false(matches(self.bound, rows))
        return Edited(is_deleted.true_count, rows.filter(pc.invert(is_deleted)), NO_ROWS)


@dataclass(frozen=True)
class UpdateMatches:
    """Gives new values to the rows for which a bound predicate is TRUE.

    new_values    computes the columns `updated` of the matching rows, a row each, from their old values
    """

    bound: Node
    updated: tuple[str, ...]
    new_values: Callable[[pa.Table], pa.Table]
    deletes = False

    def apply(self, rows: pa.Table, named: NamedRows | None = None) -> Edited:
        is_matched = null_as_false(matches(self.bound, rows))
        found = np.flatnonzero(to_numpy(is_matched))
        if not len(found):
            return Edited(0, rows, NO_ROWS)
        new = self.new_values(rows.filter(is_matched))
        return Edited(len(found), replaced(rows, new, found, np.arange(len(found))), found)


class ReplaceKeys:
    """Gives rows the values of the source row that has the same key, or deletes them if `updated` is empty.

    source     the rows that keys are compared with
    inserts    whether rows of the source that no file has are inserted: then every file has to be compared
    """

    def __init__(self, source: KeyedRows, updated: Sequence[str], inserts: bool):
        self._source, self.updated = source, tuple(updated)
        self.deletes = not self.updated and not inserts
        # In one chunk: to take rows of several may copy all of them, for each row group.
        self._new = source.values(self.updated).unify_dictionaries().combine_chunks() if self.updated else None

    def apply(self, rows: pa.Table, named: NamedRows | None = None) -> Edited:
        found, source_rows = self._source.rows_with_keys(rows, named)
        if self._new is None:
            stays = np.ones(rows.num_rows, dtype=bool)
            stays[found] = False
            return Edited(len(found), rows.filter(from_numpy(stays)), NO_ROWS)
        return Edited(len(found), replaced(rows, self._new, found, source_rows), found)


class KeyedRows:
    """Rows of a source with a key, at most one row for each key.

    A key that contains a null equals nothing. NaN equals NaN.

    rows       the source
    found      bool [rows]: the rows whose key `find` has met
    """

    def __init__(self, rows: pa.Table, on: Sequence[str], schema: pa.Schema):
        """`on`: the columns of the key. `schema`: the table's.

        Raises SchemaError if the key's columns cannot be compared with the table's, and InvalidArgumentError if two
        rows have one key.
        """
        self.rows, self.on, self._schema = rows, tuple(on), schema
        leaves = leaf_types(schema)
        self._types = [leaves[name] for name in on]
        self.keys: KeySet = key_set(rows.select(self.on), self._types)
        self.found = np.zeros(rows.num_rows, dtype=bool)
        if len(self.keys) < rows.num_rows:
            self._check_distinct()

    def _check_distinct(self) -> None:
        encoded = encoded_keys(self.rows.select(self.on), self._types)
        count = len(encoded) - encoded.null_count
        if len(self.keys) == count:
            return
        is_first = np.zeros(len(encoded), dtype=bool)
        is_first[self.keys.place] = True
        row = int(np.flatnonzero(to_numpy(encoded.is_valid()) & ~is_first)[0])
        key = ", ".join(f"{name} = {self.rows.column(name)[row].as_py()!r}" for name in self.on)
        raise InvalidArgumentError(
            f"two rows have the key {key}, so it is not clear which values it gets; pass one row for each key"
        )

    def find(self, rows: pa.Table) -> np.ndarray:
        """int64 [n]: the source row that has the key of each row, -1 if there is none."""
        encoded = encoded_keys(rows.select(self.on), self._types)
        is_key = to_numpy(encoded.is_valid())
        source_rows = np.full(rows.num_rows, -1, dtype=np.int64)
        source_rows[is_key] = self.keys.find(encoded.drop_null())
        self.found[source_rows[source_rows >= 0]] = True
        return source_rows

    def rows_with_keys(self, rows: pa.Table, named: NamedRows | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(the positions of the rows that have a key, int64, ascending; the source row of each). `named`: others have
        none."""
        if named is not None and named.source_rows is not None:
            return named.rows, named.source_rows
        compared = rows.select(self.on)
        source_rows = self.find(compared if named is None else compared.take(from_numpy(named.rows)))
        is_found = source_rows >= 0
        return np.flatnonzero(is_found) if named is None else named.rows[is_found], source_rows[is_found]

    def values(self, names: Sequence[str]) -> pa.Table:
        """Some columns of the source, in the table's types. Raises SchemaError if a value does not fit."""
        return fitted(self.rows.select(names), pa.schema([self._schema.field(name) for name in names]))


def replaced(rows: pa.Table, new: pa.Table, positions: np.ndarray, new_rows: np.ndarray) -> pa.Table:
    """The rows, with the values of `new[new_rows]` at `positions` (int64) in the columns that `new` has."""
    order = np.arange(rows.num_rows)
    order[positions] = rows.num_rows + np.arange(len(positions))
    taken, places = new.take(from_numpy(new_rows)), from_numpy(order)
    for i, field in enumerate(rows.schema):
        if field.name in new.column_names:
            both = pa.concat_tables([rows.select([i]), taken.select([field.name])]).unify_dictionaries()
            rows = rows.set_column(i, field, both.column(0).combine_chunks().take(places))
    return rows


@dataclass(frozen=True)
class Assignments:
    """Computes new values of columns by SQL expressions over the old values of a row.

    texts      column -> expression, which a call of `assignments` has checked
    schema     the table's
    """

    texts: Mapping[str, str]
    columns: Mapping[str, tuple[str, ...]]
    schema: pa.Schema

    def __call__(self, rows: pa.Table) -> pa.Table:
        from ..predicates.duckdb_engine import evaluate_values

        columns = []
        for name, text in self.texts.items():
            field = self.schema.field(name)
            columns.append(evaluate_values(text, rows.select(self.columns[name]), field))
        new = pa.table(columns, names=list(self.texts))
        return fitted(new, pa.schema([self.schema.field(name) for name in self.texts]))


def assignments(values: Mapping[str, str], schema: pa.Schema) -> Assignments:
    """Checks the expressions of an update, and reads the clock once for all rows.

    Raises SchemaError for a column that is not there or gets no values by SQL, PredicateError for an expression that
    cannot be read or is not one value of each row, InvalidArgumentError for what is no mapping of names to texts.
    """
    from ..predicates.sql_text import value_text

    if not isinstance(values, Mapping) or not values:
        raise InvalidArgumentError(f'update() takes {{"column": "SQL expression"}}, not {values!r}')
    texts, columns = {}, {}
    for name, text in values.items():
        if not isinstance(name, str) or schema.get_field_index(name) < 0:
            raise SchemaError(f"no column {name!r} to update; the table's columns are {', '.join(schema.names)}")
        if not isinstance(text, str):
            raise InvalidArgumentError(
                f"the new value of {name!r} is SQL text, not {text!r}; write a text value in quotes: \"'closed'\""
            )
        texts[name], columns[name] = value_text(text, schema)
    checked = Assignments(texts, columns, schema)
    checked(schema.empty_table())
    return checked
