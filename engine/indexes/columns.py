"""The columns of indexes: which ones can be indexed, and where they are in files of each physical schema. Also the
check of an index's options, and evidence about values per unit (file, block of files, partition, row group), from
stored statistics or from known values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import combine, empty_bytes, from_numpy, repeat_value, to_numpy, valid_mask
from ...errors import InvalidArgumentError, SchemaError, is_integer
from ..parquet.column_stats import numbers
from ..parquet.leaves import in_table_names, leaf_type, leaf_types, ordered_type, top_level
from ..predicates.possible_values import Evidence
from ..state import FileSchema, Instant
from ..state.coverage import DerivedColumn
from .derived import derived_type
from .elements import element_type

_SORTED_MAX = 1 << 15
_SHARD_SIZES = {"small": 8 << 20, "medium": 64 << 20, "large": 512 << 20}


class ColumnInFiles(NamedTuple):
    """One column that can be indexed.

    type               in the table
    path_by_schema     schema id -> (physical dotted path, type there)
    schemas_without    ids of schemas whose files certainly do not have it, or have it in Arrow's null type while
                       `default` is null: every row of a base file has the value `default`
    default            the column's initial default; None: null
    """

    type: pa.DataType
    path_by_schema: dict[int, tuple[str, pa.DataType]]
    schemas_without: frozenset[int]
    default: pa.Scalar | None = None

    def evidence_where_absent(self, units: int) -> Evidence:
        """Return the evidence for units of base files that do not have the column."""
        if self.default is None:
            return evidence_all_null(self.type, units)
        return evidence_of_values(pa.repeat(self.default, units))

    def kinds(self) -> list[pa.DataType]:
        """Return the types that the column has in files; the table's own type first."""
        return list(dict.fromkeys([self.type, *(kind for _, kind in self.path_by_schema.values())]))

    def is_of_kind(self, kind: pa.DataType, schema_ids: np.ndarray) -> np.ndarray:
        """Return True (bool [n]) for files of these schemas with the column in that type; for an unknown schema (-1),
        the table's type."""
        ids = [number for number, (_, physical) in self.path_by_schema.items() if physical == kind]
        return np.isin(schema_ids, [*ids, -1] if kind == self.type else ids)


def column_in_files(instant: Instant, column: str) -> ColumnInFiles | None:
    """Return None if the column cannot be indexed: it has no order, or its values are in the path. Elements are located
    where their list column is, with the type of the elements."""
    derived = instant.derived_column(column)
    if derived is not None:
        return None if derived.expression is not None else _elements_in_files(instant, derived)
    column_id = instant.columns.get(column)
    kind = leaf_type(instant.schema, column)
    if column_id is None or kind is None or column in instant.partitioning:
        return None
    name = top_level(instant.schema, column)
    field_id, below = instant.fields[name], column[len(name) + 1 :]
    default = instant.defaults.get(field_id)
    path_by_schema = {}
    schemas_without = set()
    for number, schema in enumerate(instant.file_schemas):
        path = schema.path_of(column_id)
        type_in_file = None if path is None else leaf_type(schema.schema, path)
        physical = schema.name_of(field_id)
        if path is not None and type_in_file is not None:
            path_by_schema[number] = (path, type_in_file)
        elif physical is None or ((below or default is None) and _lacks_field(schema, physical, below)):
            schemas_without.add(number)
    return ColumnInFiles(kind, path_by_schema, frozenset(schemas_without), default)


def _elements_in_files(instant: Instant, derived: DerivedColumn) -> ColumnInFiles | None:
    assert derived.field is not None
    kind = derived_type(instant, derived)
    path_by_schema, schemas_without = {}, set()
    for number, schema in enumerate(instant.file_schemas):
        physical = schema.name_of(derived.field)
        if physical is None:  # the default of a list column is always null
            schemas_without.add(number)
        elif (physical,) not in schema.nested:
            type_in_file = element_type(schema.schema.field(physical).type)
            if type_in_file is not None:
                path_by_schema[number] = (physical, type_in_file)
    return None if kind is None else ColumnInFiles(kind, path_by_schema, frozenset(schemas_without))


def indexed_type(instant: Instant, name: str) -> pa.DataType:
    """Return the type of an indexed column's values, derived or not. Raise SchemaError if it has no order."""
    derived = instant.derived_column(name)
    kind = None if derived is None else derived_type(instant, derived)
    return ordered_type(instant.schema, name) if kind is None else kind


def _lacks_field(schema: FileSchema, physical: str, below: str) -> bool:
    if (physical,) in schema.nested:  # it cannot be read
        return False
    return _lacks(in_table_names(pa.schema([schema.schema.field(physical)]), schema.nested).field(0).type, below)


def _lacks(kind: pa.DataType, path: str) -> bool:
    """Return True if every value at that dotted path ("": the column itself) is certainly null, because the type has no
    such leaf or it is Arrow's null type."""
    for name in path.split(".") if path else ():
        if not pa.types.is_struct(kind):
            return False
        if kind.get_field_index(name) < 0:
            return True
        kind = kind.field(name).type
    return pa.types.is_null(kind)


def names_in_files(instant: Instant, names: Iterable[str]) -> tuple[dict[str, str], ...]:
    """Return, for each physical schema, the physical names of the top-level columns that its files have."""
    wanted = [(name, instant.fields[name]) for name in names]
    by_schema = []
    for schema in instant.file_schemas:
        physical = {number: name for name, number in schema.fields.items()}
        by_schema.append({name: physical[number] for name, number in wanted if number in physical})
    return tuple(by_schema)


def defaults_of(instant: Instant, names: Iterable[str]) -> dict[str, pa.Scalar]:
    """Return the values, if not null, that top-level columns have in files that lack them."""
    return {name: instant.defaults[instant.fields[name]] for name in names if instant.fields[name] in instant.defaults}


def checked_options(kind: str, options: dict[str, Any], allowed: Collection[str]) -> None:
    """Raise InvalidArgumentError for an option that this kind does not have."""
    for name in options:
        if name not in allowed:
            has = ", ".join(f"{n}=" for n in sorted(allowed)) or "none"
            raise InvalidArgumentError(f"{name}= means nothing to a {kind} index; its options: {has}")


def checked_shard_bytes(value: object) -> int:
    """Return the bytes that `shard_bytes=` means: a number or a `ShardSize`. Raise InvalidArgumentError for others."""
    if isinstance(value, str) and value in _SHARD_SIZES:
        return _SHARD_SIZES[value]
    if not is_integer(value, 1):
        raise InvalidArgumentError(
            f"shard_bytes is a number of bytes, or one of {', '.join(_SHARD_SIZES)}, not {value!r}"
        )
    return value


def column_ids(
    instant: Instant, columns: Sequence[str], can_be_indexed: Callable[[pa.DataType], bool]
) -> list[tuple[int, pa.DataType]]:
    """Return (id, type) of each column. Raise SchemaError for an unknown column, a partition column, or a type that
    cannot be indexed."""
    leaves = leaf_types(instant.schema)
    ids = []
    for name in columns:
        if name in instant.partitioning:
            raise SchemaError(f"{name!r} is a partition column: its values prune without an index")
        kind = leaves.get(name) if instant.derived_column(name) is None else indexed_type(instant, name)
        if kind is None or not can_be_indexed(kind):
            usable = [p for p, t in leaves.items() if p not in instant.partitioning and can_be_indexed(t)]
            message = f"no column {name!r} that can be indexed; there are {', '.join(usable)}"
            raise SchemaError(message, hint=columns_hint(instant))
        ids.append((instant.ids[name], kind))
    return ids


def columns_hint(instant: Instant) -> str | None:
    """Return a hint for a column that the log may have gained since the version was created; None for a directory."""
    return None if instant.source["kind"] == "directory" else "{sync} adds columns that were added to the log"


# -- evidence ---------------------------------------------------------------------------------------------------------


# The statistics that `evidence_of` uses.
EVIDENCE_FIELDS = ["min_code", "max_code", "min_bytes", "max_bytes", "null_count", "nan_count", "holds_no_values"]


@dataclass
class StatRows:
    """Statistics of some units, column by column: the input of `evidence_of`.

    numbers      name -> (int64 [n], bool [n]: known) of counts, order codes and flags
    texts        name -> binary Array [n] of bounds that are bytes, null if unknown
    constants    name -> the one number that all units share; None if it is unknown in all
    """

    count: int
    numbers: dict[str, tuple[np.ndarray, np.ndarray]]
    texts: dict[str, pa.Array]
    constants: dict[str, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, columns: Mapping[str, pa.Array | pa.ChunkedArray], count: int) -> StatRows:
        """Return statistics from stored columns. The statistics of a missing column are unknown."""
        arrays = {n: combine(c) if isinstance(c, pa.ChunkedArray) else c for n, c in columns.items()}
        bounds = ("min_bytes", "max_bytes")
        texts = {n: a for n, a in arrays.items() if n in bounds}
        return cls(count, {n: numbers(a) for n, a in arrays.items() if n not in bounds}, texts)

    def take(self, units: np.ndarray) -> StatRows:
        """Return the units at some positions. At position -1 everything is unknown."""
        is_there = units >= 0
        if self.count == 0:
            return StatRows(len(units), {}, {})
        place = np.where(is_there, units, 0)
        numbers_at = {n: (values[place], valid[place] & is_there) for n, (values, valid) in self.numbers.items()}
        picked = from_numpy(place, None if is_there.all() else is_there)
        texts = {n: array.take(picked) for n, array in self.texts.items()}
        if is_there.all():
            return StatRows(len(units), numbers_at, texts, dict(self.constants))
        numbers_at |= {n: (np.full(len(units), v or 0), is_there & (v is not None)) for n, v in self.constants.items()}
        return StatRows(len(units), numbers_at, texts)

    def number(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (int64 [n], bool [n]: known)."""
        column = self.numbers.get(name)
        if column is None:
            value = self.constants.get(name)
            column = np.full(self.count, value or 0, np.int64), np.full(self.count, value is not None)
        return column

    def may_exceed_zero(self, name: str) -> np.ndarray:
        """Return True (bool [n]) if the number is above 0, or unknown."""
        if name not in self.numbers:
            return np.full(self.count, self.constants.get(name) != 0)
        values, valid = self.numbers[name]
        return ~valid | (values > 0)

    def text(self, name: str) -> tuple[pa.Array, np.ndarray]:
        """Return (binary Array [n] without nulls, bool [n]: known)."""
        array = self.texts.get(name)
        if array is None:
            return repeat_value(b"", self.count, pa.binary()), np.zeros(self.count, dtype=bool)
        valid = valid_mask(array)
        if valid is None:
            return array, np.ones(self.count, dtype=bool)
        return array.fill_null(empty_bytes()), valid


def concat(parts: Sequence[StatRows]) -> StatRows:
    """Return the units of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(n for p in parts for n in (*p.numbers, *p.constants))
    texts = dict.fromkeys(n for p in parts for n in p.texts)
    pairs = {n: [p.number(n) for p in parts] for n in names}
    return StatRows(
        sum(p.count for p in parts),
        {n: (np.concatenate([v for v, _ in each]), np.concatenate([k for _, k in each])) for n, each in pairs.items()},
        {n: pa.concat_arrays([p.texts.get(n, pa.nulls(p.count, pa.binary())) for p in parts]) for n in texts},
    )


def evidence_of(rows: StatRows, kind: pa.DataType) -> Evidence:
    """Return the evidence in stored statistics for each unit. `kind` is the type in which the statistics were taken."""
    has_nan = pa.types.is_floating(kind)
    # A row is a null, a NaN or a value. Some rows may be values, unless all rows are known to be nulls or NaNs.
    if "holds_no_values" in rows.numbers:
        none_left, valid = rows.numbers["holds_no_values"]
        may_be_value = ~((none_left != 0) & valid)
    else:
        may_be_value = np.full(rows.count, rows.constants.get("holds_no_values") != 1)
    if canon.order_class(kind) == "bytes":
        lower, has_lower = rows.text("min_bytes")
        upper, has_upper = rows.text("max_bytes")
    else:
        lower, has_lower = rows.number("min_code")
        upper, has_upper = rows.number("max_code")
    return Evidence(
        type=kind,
        may_be_null=rows.may_exceed_zero("null_count"),
        may_be_nan=rows.may_exceed_zero("nan_count") if has_nan else np.zeros(rows.count, dtype=bool),
        may_be_value=may_be_value,
        lower=lower,
        upper=upper,
        has_lower=has_lower,
        has_upper=has_upper,
    )


def evidence_of_values(values: pa.Array) -> Evidence:
    """Return the evidence for units that each have one known value or null: partition columns."""
    kind = values.type
    valid = valid_mask(values)
    is_valid = np.ones(len(values), dtype=bool) if valid is None else valid
    nan = canon.nan_mask(values)
    is_nan = np.zeros(len(values), dtype=bool) if nan is None else nan
    if canon.order_class(kind) == "bytes":
        bounds: np.ndarray | pa.Array = canon.order_bytes(values).fill_null(empty_bytes())
    else:
        bounds = canon.order_codes(values)
    is_value = is_valid & ~is_nan
    return Evidence(kind, ~is_valid, is_nan, is_value, bounds, bounds, is_value, is_value.copy())


def evidence_at(evidence: Evidence, units: np.ndarray) -> Evidence:
    """Return the evidence of the units at some positions."""
    bounds = [evidence.lower, evidence.upper]
    lower, upper = (b[units] if isinstance(b, np.ndarray) else b.take(from_numpy(units)) for b in bounds)
    flags = (evidence.may_be_null, evidence.may_be_nan, evidence.may_be_value)
    null, nan, value = (f[units] for f in flags)
    return Evidence(evidence.type, null, nan, value, lower, upper, evidence.has_lower[units], evidence.has_upper[units])


def evidence_all_null(kind: pa.DataType, units: int) -> Evidence:
    """Return the evidence for a column that the units' files do not have: every row is null."""
    evidence = Evidence.unknown(kind, units)
    evidence.may_be_value[:] = False
    evidence.may_be_nan[:] = False
    return evidence


def union_by_slice(evidence: Evidence, slice_of: np.ndarray, slices: int) -> Evidence:
    """Return the evidence of slices: an outcome that is possible in one of its files is possible in a slice.

    `slice_of` contains each file's slice, or -1 for files without rows. A slice without files contains no rows.
    """
    live = slice_of >= 0
    of_live = slice_of[live]

    def any_of(flags: np.ndarray) -> np.ndarray:
        out = np.zeros(slices, dtype=bool)
        np.logical_or.at(out, of_live, flags[live])
        return out

    has_values = evidence.may_be_value  # a file without values has no bounds: it widens no bound and leaves none open
    open_lower = any_of(has_values & ~evidence.has_lower)
    open_upper = any_of(has_values & ~evidence.has_upper)
    if isinstance(evidence.lower, np.ndarray):
        lower = np.full(slices, np.iinfo(np.int64).max)
        upper = np.full(slices, np.iinfo(np.int64).min)
        used = live & has_values
        np.minimum.at(lower, slice_of[used], evidence.lower[used])
        np.maximum.at(upper, slice_of[used], evidence.upper[used])
    else:
        used = live & has_values
        lower = extreme_bytes(evidence.lower, used, slice_of, slices, is_lower=True).fill_null(empty_bytes())
        upper = extreme_bytes(evidence.upper, used, slice_of, slices, is_lower=False).fill_null(empty_bytes())
    return Evidence(
        type=evidence.type,
        may_be_null=any_of(evidence.may_be_null),
        may_be_nan=any_of(evidence.may_be_nan),
        may_be_value=any_of(has_values),
        lower=lower,
        upper=upper,
        has_lower=~open_lower,
        has_upper=~open_upper,
    )


def extreme_bytes(values: pa.Array, used: np.ndarray, group_of: np.ndarray, groups: int, is_lower: bool) -> pa.Array:
    """Return the least (or the greatest) of the used values of each group; null for a group without used values."""
    places = np.flatnonzero(used)
    if len(places) <= _SORTED_MAX:  # an Arrow plan takes half a millisecond, and loads pandas if it is installed
        order = "ascending" if is_lower else "descending"
        best_first = places[to_numpy(pc.array_sort_indices(values.take(from_numpy(places)), order=order))]
        found, first = np.unique(group_of[best_first], return_index=True)
        place_of = np.full(groups, -1)
        place_of[found] = best_first[first]
        return values.take(from_numpy(place_of, place_of >= 0))
    which = "min" if is_lower else "max"
    grouped = pa.table({"group": from_numpy(group_of[used]), "value": values.filter(from_numpy(used))})
    extremes = grouped.group_by("group", use_threads=False).aggregate([("value", which)])
    row_of = np.full(groups, -1)
    row_of[to_numpy(extremes.column("group"))] = np.arange(extremes.num_rows)
    return combine(extremes.column(f"value_{which}")).take(from_numpy(row_of, row_of >= 0))
