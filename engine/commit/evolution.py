"""What an alteration makes of a version's schema: names, types and ids of its columns, and the indexes left to them.

A column is its id, whatever it is called: what was recorded of a file says which ids its physical names stand for, so
statistics and filters follow a rename, and a column that takes over an old name begins anew.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pyarrow as pa

from ...errors import SchemaError
from ..indexes.protocol import known_kind
from ..indexes.stats.rows import first_stats
from ..parquet.leaves import leaf_types, top_level
from ..predicates.widening import is_list, merged_type
from ..state import IndexState, Instant
from .schemas import check_table_schema, identified, leaves_below


@dataclass(frozen=True)
class Alteration:
    """What is asked for. All names are those before it, but for `add` and `order`, which speak of those after it.

    rename      old name -> new name
    drop        names
    widen       name -> type
    add         fields, at the end of the data columns
    defaults    name of an added field -> what files that lack it hold
    order       all names; None leaves the order
    """

    rename: dict[str, str]
    drop: tuple[str, ...]
    widen: dict[str, pa.DataType]
    add: tuple[pa.Field, ...]
    defaults: dict[str, pa.Scalar] = field(default_factory=dict)
    order: tuple[str, ...] | None = None


def evolved(base: Instant, asked: Alteration) -> Instant:
    """A version with its schema changed, and all else as it is. Raises SchemaError for what cannot be done to it."""
    _check_names(base, asked)
    schema, fields = _schema(base, asked)
    leaves = {
        (base.fields[name], below): base.columns[path] for path, (name, below) in leaves_below(base.schema).items()
    }
    numbers, columns, following = identified(schema, fields, leaves, base.next)
    names = {number: name for name, number in numbers.items()}
    kept = {number: value for number, value in base.defaults.items() if number in names}
    kept.update((numbers[name], value) for name, value in asked.defaults.items())
    moved = (name for name, number in base.fields.items() if numbers.get(name) != number)
    return replace(
        base,
        schema=schema,
        fields=numbers,
        columns=columns,
        retired=tuple(dict.fromkeys((*base.retired, *moved))),
        next=following,
        defaults={number: value.cast(schema.field(names[number]).type) for number, value in kept.items()},
        indexes=indexes_left(base, set(columns.values())),
    )


def _check_names(base: Instant, asked: Alteration) -> None:
    for verb, names in (("renamed", asked.rename), ("dropped", asked.drop), ("widened", asked.widen)):
        for name in names:
            if base.schema.get_field_index(name) < 0:
                raise SchemaError(_unknown(base.schema, name))
            if name in base.partitioning:
                raise SchemaError(
                    f"{name!r} is a partition column, which the paths of files spell out: it cannot be {verb}"
                )
    if "" in asked.rename.values() or any(new.name == "" for new in asked.add):
        raise SchemaError("a column needs a name")
    for name in asked.drop:
        if name in asked.rename or name in asked.widen:
            other = "renamed" if name in asked.rename else "widened"
            raise SchemaError(f"column {name!r} is dropped and {other} in one call; ask for one of the two")


def _unknown(schema: pa.Schema, name: str) -> str:
    try:
        top = top_level(schema, name)
    except KeyError:
        return f"no column {name!r}; there are {', '.join(schema.names)}"
    return (
        f"{name!r} lies within {top!r}: only whole top-level columns are altered (a struct gets new fields, at its "
        f"end, or wider ones by widen={{{top!r}: pa.struct(...)}})"
    )


def _schema(base: Instant, asked: Alteration) -> tuple[pa.Schema, dict[str, int]]:
    """The schema after it, and the ids of the columns that stay, by their new names."""
    fields: dict[str, pa.Field] = {}
    numbers: dict[str, int] = {}
    data_end = 0
    for known in base.schema:
        if known.name in asked.drop:
            continue
        name = asked.rename.get(known.name, known.name)
        if name in fields:
            raise SchemaError(f"two columns would be named {name!r}; rename or drop the other in the same call")
        fields[name] = known.with_name(name).with_type(_widened(known, asked))
        numbers[name] = base.fields[known.name]
        if known.name not in base.partitioning:
            data_end = len(fields)
    for new in asked.add:
        if new.name in fields:
            raise SchemaError(f"there is a column {new.name!r}; add under another name, or drop or rename that one")
        fields[new.name] = new
    names = list(fields)
    first_added = len(names) - len(asked.add)
    names = [*names[:data_end], *names[first_added:], *names[data_end:first_added]]
    if asked.order is not None:
        odd = set(names).symmetric_difference(asked.order)
        if odd or len(asked.order) != len(names):
            told = f"it should not have, or lacks, {sorted(odd)[0]!r}" if odd else "a name is there twice"
            raise SchemaError(f"order= lists every column of the table once; {told} (of {', '.join(names)})")
        names = list(asked.order)
    schema = pa.schema([fields[name] for name in names])
    check_table_schema(schema, base.partitioning)
    unclear = _unclear(schema) - _unclear(base.schema)
    if unclear:
        raise SchemaError(f"two columns could be meant by {min(unclear)!r}; take a name without a dot")
    return schema, numbers


def _unclear(schema: pa.Schema) -> set[str]:
    """Dotted paths that more than one leaf has."""
    counts = Counter(path for f in schema for path in leaf_types(pa.schema([f])))
    return {path for path, count in counts.items() if count > 1}


def _widened(known: pa.Field, asked: Alteration) -> pa.DataType:
    wanted = asked.widen.get(known.name, known.type)
    if merged_type(known.type, wanted) != wanted:
        raise SchemaError(
            f"column {known.name!r} is {known.type}, and {wanted} does not hold each of its values exactly and in "
            "their order; add a column of that type, and write it anew"
        )
    if _gains_nanoseconds(known.type, wanted):
        raise SchemaError(
            f"column {known.name!r}: instants before 1677 or after 2262 do not fit {wanted}; widen to microseconds"
        )
    return wanted


def _gains_nanoseconds(known: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_struct(known) and pa.types.is_struct(wanted):
        return any(_gains_nanoseconds(f.type, wanted.field(f.name).type) for f in known)
    if is_list(known) and is_list(wanted):
        return _gains_nanoseconds(known.value_type, wanted.value_type)
    if pa.types.is_map(known) and pa.types.is_map(wanted):
        parts = ((known.key_type, wanted.key_type), (known.item_type, wanted.item_type))
        return any(_gains_nanoseconds(*part) for part in parts)
    is_instant = pa.types.is_timestamp(known) or pa.types.is_date(known)
    is_finer = pa.types.is_timestamp(wanted) and wanted.unit == "ns" and getattr(known, "unit", None) != "ns"
    return is_instant and is_finer


def indexes_left(instant: Instant, live: set[int]) -> tuple[IndexState, ...]:
    """The indexes with the columns that are left to them; one whose key they are together goes with the first that
    goes. The statistics that `create` made stay without any: they know where the fine ones lie."""
    first = first_stats(instant).id
    left = []
    for index in instant.indexes:
        kind = known_kind(index.kind)
        is_compound = kind is None or kind.is_compound
        columns = tuple(c for c in index.columns if c in live)
        if index.id == first or (columns and (columns == index.columns or not is_compound)):
            left.append(replace(index, columns=columns))
    return tuple(left)


def columns_state(instant: Instant) -> tuple:
    """What alterations change: equal where no other writer altered the columns meanwhile."""
    return instant.schema, instant.fields, instant.retired, instant.next["field"], instant.next["column"]
