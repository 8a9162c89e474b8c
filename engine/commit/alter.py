"""Schema evolution: one action that renames, drops, widens, adds and re-orders top-level columns.

It changes no file. If files already contain an added column, under a name that no column ever had, the same version
binds them again. An id identifies a column, not its name: the record of a file maps its physical names to ids, so
statistics and filters follow a rename, and a new column that reuses an old name starts empty.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from ...base import canon
from ...base.arrays import is_utf8
from ...errors import CommitConflictError, InvalidArgumentError, SchemaError
from ..indexes.kind import kind_named
from ..indexes.task_result import TaskResult
from ..parquet.leaves import leaf_types, plain_type, top_level
from ..predicates.coerce import is_list, merged_type
from ..state import FileSchema, IndexState, Instant
from ..state.lsm import RunWriter
from ..state.run_format import SHARD_BYTES
from ..state.snapshot import Snapshot
from .adopt_columns import bind_again, names_ever
from .commit import WriteBatch, commit, write_batch
from .conflicts import returned_files
from .edit import Edit, removal
from .schemas import (
    all_fit_nanoseconds,
    check_table_schema,
    identified,
    schemas_of,
    types_to_fit,
    with_indexes_left,
)

if TYPE_CHECKING:
    from ..handle import Handle


Added: TypeAlias = Mapping[str, pa.DataType | pa.Field | pa.Scalar] | pa.Field | pa.Schema | Sequence[pa.Field]


def alter(
    handle: Handle,
    rename: Mapping[str, str] | None,
    add: Added | None,
    drop: str | Sequence[str] | None,
    widen: Mapping[str, pa.DataType] | None,
    order: Sequence[str] | None,
) -> int:
    """See `Table.alter`."""
    added, defaults = _added(add)
    wanted = Alteration(
        rename=_mapping("rename", rename, str, "new names"),
        drop=_names("drop", drop),
        widen={n: plain_type(k) for n, k in _mapping("widen", widen, pa.DataType, "pyarrow types").items()},
        add=added,
        defaults=defaults,
        order=None if order is None else _names("order", order),
    )
    base = handle.instant
    after = evolved(base, wanted)
    for name in _gaining_nanoseconds(base, wanted.widen):
        raise SchemaError(
            f"column {name!r}: timestamps before 1677 or after 2262 do not fit {wanted.widen[name]}; widen to "
            "microseconds"
        )
    if (after.schema, after.fields) == (base.schema, base.fields):  # only the type of a default changes
        return base.version
    kept = {one.id for one in after.derived}
    for number in [one.id for one in base.derived if one.expression is not None and one.id not in kept]:
        name = base.derived_names[number]
        warnings.warn(f"the indexes of {name} are dropped with a column that it reads", stacklevel=3)
    with write_batch(handle, base) as batch:
        evolve, before = evolver(handle, base, wanted, batch), Snapshot(base, handle.readers)
        results, removed = bind_again(handle, before, evolve(base), batch) if wanted.add else ([], {})

        def plan(newest: Snapshot, _: RunWriter) -> Edit:
            after, summary = evolve(newest.instant), _summary(wanted)
            return Edit(after=after, results=results, removed=removal(removed), remember_removed=False, summary=summary)

        return commit(handle, "alter", plan, batch=batch).version


def _summary(wanted: Alteration) -> dict[str, object]:
    return {
        "renamed": wanted.rename,
        "dropped": list(wanted.drop),
        "widened": {name: str(kind) for name, kind in wanted.widen.items()},
        "added": {f.name: str(f.type) for f in wanted.add},
    }


# -- arguments --------------------------------------------------------------------------------------------------------


def _mapping(argument: str, value: Any, kind: type, what: str) -> dict[str, Any]:
    if value is None:
        return {}

    def fits(item: Any) -> bool:
        return is_utf8(item) if kind is str else isinstance(item, kind)

    if not isinstance(value, Mapping) or not all(is_utf8(name) and fits(item) for name, item in value.items()):
        raise InvalidArgumentError(f"{argument}= maps names of columns to {what}, not {value!r}")
    return dict(value)


def _names(argument: str, value: Any) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"{argument}= is a list of names of columns, not {value!r}")
    return tuple(names)


def _added(value: Any) -> tuple[tuple[pa.Field, ...], dict[str, pa.Scalar]]:
    """Return the fields to add, and the defaults of those that have one."""
    if isinstance(value, Mapping):
        pairs = list(value.items())
    else:
        fields = [value] if isinstance(value, pa.Field) else [] if value is None else value
        if not isinstance(fields, (Sequence, pa.Schema)) or not all(isinstance(f, pa.Field) for f in fields):
            raise InvalidArgumentError(f"add= is a mapping of names to types, or pyarrow fields, not {value!r}")
        pairs = [(f.name, f) for f in fields]
    added: dict[str, pa.Field] = {}
    defaults = {}
    for name, item in pairs:
        if not is_utf8(name) or not isinstance(item, (pa.DataType, pa.Field, pa.Scalar)):
            raise InvalidArgumentError(
                f"add= gives {name!r} a pyarrow type, field or scalar (its default), not {item!r}"
            )
        if isinstance(item, pa.Field) and item.name != name:
            raise SchemaError(f"add= calls a column {name!r} and, in its field, {item.name!r}")
        if name in added:
            raise SchemaError(f"add= names {name!r} twice")
        if isinstance(item, pa.Field) and not item.nullable:
            raise SchemaError(f"column {name!r} must allow nulls: the files of the table lack it")
        kind = plain_type(item if isinstance(item, pa.DataType) else item.type)
        added[name] = pa.field(name, kind)
        if isinstance(item, pa.Scalar) and item.is_valid:
            if canon.order_class(kind) is None:
                raise SchemaError(f"column {name!r}: a default is one plain value, not a {kind}; add it as null")
            defaults[name] = item if item.type == kind else item.cast(kind)
    return tuple(added.values()), defaults


# -- how an alteration changes a version -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alteration:
    """The requested changes. Names refer to the schema before them; `add` and `order` use the names after them.

    rename      old name -> new name
    drop        names
    widen       name -> type
    add         fields, at the end of the data columns
    defaults    name of an added field -> the value of the rows of files that lack it
    order       all names; None keeps the order
    """

    rename: dict[str, str]
    drop: tuple[str, ...]
    widen: dict[str, pa.DataType]
    add: tuple[pa.Field, ...]
    defaults: dict[str, pa.Scalar] = field(default_factory=dict)
    order: tuple[str, ...] | None = None


def evolved(base: Instant, wanted: Alteration) -> Instant:
    """Return a version in which only the schema changed. Raise SchemaError for a change that is not possible."""
    _check_names(base, wanted)
    schema, fields = _schema(base, wanted)
    after = identified(base, schema, fields)
    names = {number: name for name, number in after.fields.items()}
    defaults = {number: value for number, value in base.defaults.items() if number in names}
    defaults.update((after.fields[name], value) for name, value in wanted.defaults.items())
    moved = (name for name, number in base.fields.items() if after.fields.get(name) != number)
    after = replace(
        after,
        retired=tuple(dict.fromkeys((*base.retired, *moved))),
        defaults={number: value.cast(schema.field(names[number]).type) for number, value in defaults.items()},
    )
    return with_indexes_left(after)


def _check_names(base: Instant, wanted: Alteration) -> None:
    for verb, names in (("renamed", wanted.rename), ("dropped", wanted.drop), ("widened", wanted.widen)):
        for name in names:
            if base.schema.get_field_index(name) < 0:
                raise SchemaError(_unknown(base.schema, name))
            if name in base.partitioning:
                raise SchemaError(
                    f"{name!r} is a partition column, which the paths of files spell out: it cannot be {verb}"
                )
    if "" in wanted.rename.values() or any(new.name == "" for new in wanted.add):
        raise SchemaError("a column needs a name")
    for name in wanted.drop:
        if name in wanted.rename or name in wanted.widen:
            other = "renamed" if name in wanted.rename else "widened"
            raise SchemaError(f"column {name!r} is dropped and {other} in one call; do one per call")


def _unknown(schema: pa.Schema, name: str) -> str:
    try:
        top = top_level(schema, name)
    except KeyError:
        return f"no column {name!r}; there are {', '.join(schema.names)}"
    return (
        f"{name!r} is a field of {top!r}: only whole top-level columns can be altered (a struct gets new fields, "
        f"at its end, or wider ones by widen={{{top!r}: pa.struct(...)}})"
    )


def _schema(base: Instant, wanted: Alteration) -> tuple[pa.Schema, dict[str, int]]:
    """Return the schema after the alteration, and the ids of the remaining columns by their new names."""
    fields: dict[str, pa.Field] = {}
    numbers: dict[str, int] = {}
    data_end = 0
    for column in base.schema:
        if column.name in wanted.drop:
            continue
        name = wanted.rename.get(column.name, column.name)
        if name in fields:
            raise SchemaError(f"two columns would be named {name!r}; rename or drop the other in the same call")
        fields[name] = column.with_name(name).with_type(_widened(column, wanted))
        numbers[name] = base.fields[column.name]
        if column.name not in base.partitioning:
            data_end = len(fields)
    for new in wanted.add:
        if new.name in fields:
            raise SchemaError(f"there is a column {new.name!r}; add under another name, or drop or rename that one")
        fields[new.name] = new
    names = list(fields)
    first_added = len(names) - len(wanted.add)
    names = [*names[:data_end], *names[first_added:], *names[data_end:first_added]]
    if wanted.order is not None:
        odd = set(names).symmetric_difference(wanted.order)
        if odd or len(wanted.order) != len(names):
            reason = f"it should not have, or lacks, {sorted(odd)[0]!r}" if odd else "a name is there twice"
            raise SchemaError(f"order= lists every column of the table once; {reason} (of {', '.join(names)})")
        names = list(wanted.order)
    schema = pa.schema([fields[name] for name in names])
    check_table_schema(schema, base.partitioning)
    unclear = _unclear(schema) - _unclear(base.schema)
    if unclear:
        raise SchemaError(f"two columns could be meant by {min(unclear)!r}; use a name without a dot")
    return schema, numbers


def _unclear(schema: pa.Schema) -> set[str]:
    """Return the dotted paths that more than one leaf has."""
    counts = Counter(path for f in schema for path in leaf_types(pa.schema([f])))
    return {path for path, count in counts.items() if count > 1}


def _widened(column: pa.Field, wanted: Alteration) -> pa.DataType:
    wider = wanted.widen.get(column.name, column.type)
    if merged_type(column.type, wider) != wider:
        raise SchemaError(
            f"column {column.name!r} is {column.type}, and {wider} does not contain each of its values exactly and in "
            "their order; add a column of that type, and write it again"
        )
    return wider


def _gaining_nanoseconds(base: Instant, widen: Mapping[str, pa.DataType]) -> list[str]:
    return [name for name, kind in widen.items() if _gains_nanoseconds(base.schema.field(name).type, kind)]


def _gains_nanoseconds(old: pa.DataType, new: pa.DataType) -> bool:
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return any(_gains_nanoseconds(f.type, new.field(f.name).type) for f in old)
    if is_list(old) and is_list(new):
        return _gains_nanoseconds(old.value_type, new.value_type)
    if pa.types.is_map(old) and pa.types.is_map(new):
        parts = ((old.key_type, new.key_type), (old.item_type, new.item_type))
        return any(_gains_nanoseconds(*part) for part in parts)
    is_instant = pa.types.is_timestamp(old) or pa.types.is_date(old)
    is_finer = pa.types.is_timestamp(new) and new.unit == "ns" and getattr(old, "unit", None) != "ns"
    return is_instant and is_finer


def columns_state(instant: Instant) -> tuple:
    """Return the state that alterations change. It is equal if no other writer altered the columns concurrently."""
    return instant.schema, instant.fields, instant.retired, instant.next["field"], instant.next["column"]


def new_columns(instant: Instant, schemas: Sequence[tuple[pa.Schema, int]]) -> dict[str, pa.DataType]:
    """Return the columns of some files that a table could adopt, each in a type that contains the values of most files.
    `schemas`: of live files, and of new ones that fit, each with the number of its files. Columns that cannot exist
    next to the others are left out."""
    names, types = names_ever(instant), dict[str, pa.DataType]()
    for schema, _ in sorted(schemas, key=lambda one: -one[1]):
        for column in schema:
            if column.name not in names and not pa.types.is_null(column.type):
                merged = merged_type(types.get(column.name, column.type), column.type)
                types[column.name] = types[column.name] if merged is None else merged
    for name, kind in list(types.items()):
        try:
            evolved(instant, adding({name: kind}))
        except SchemaError:
            del types[name]
    return types


def adding(types: Mapping[str, pa.DataType]) -> Alteration:
    """Return the alteration that adds columns."""
    return Alteration(rename={}, drop=(), widen={}, add=tuple(pa.field(name, kind) for name, kind in types.items()))


def widening(types: Mapping[str, pa.DataType]) -> Alteration:
    """Return the alteration that widens columns."""
    return Alteration(rename={}, drop=(), widen=dict(types), add=())


def wider_columns(snapshot: Snapshot, results: Sequence[TaskResult]) -> dict[str, pa.DataType]:
    """Return name -> type of the columns that must be widened so that the files of some results fit. The types of more
    files have priority. A schema that cannot fit widens nothing."""
    base, counts = snapshot.instant, Counter[int]()
    schemas: list[FileSchema] = []
    for result in results:
        of_result = Counter(result.files.column("schema_id").to_pylist())
        counts.update({len(schemas) + position: of_result[position] for position in range(len(result.schemas))})
        schemas += schemas_of(base, base, result)
    wider = base
    for position, _ in counts.most_common():
        types = types_to_fit(wider, schemas[position])
        try:
            widened = evolved(wider, widening(types)) if types else wider
        except SchemaError:
            continue
        if widened is not wider and _fits_nanoseconds(snapshot, types):
            wider = widened
    changed = zip(wider.schema, base.schema, strict=True)
    return {column.name: column.type for column, before in changed if column.type != before.type}


def _fits_nanoseconds(snapshot: Snapshot, widen: Mapping[str, pa.DataType]) -> bool:
    """Return whether columns of a version can be widened to nanoseconds, which span 1677 to 2262. For lists and structs
    this is never proven."""
    gaining = _gaining_nanoseconds(snapshot.instant, widen)
    return all(not pa.types.is_nested(widen[name]) and all_fit_nanoseconds(snapshot, name) for name in gaining)


def evolver(
    handle: Handle, base: Instant, wanted: Alteration, writing: RunWriter | WriteBatch, stats_max: int | None = None
) -> Callable[[Instant], Instant]:
    """Return a function that changes the columns of a version. The first of the new leaves get statistics in a separate
    index, so that no existing index is rewritten: its entries record that the files of `base` lack these columns."""
    after = evolved(base, wanted)
    leaves = sorted(set(after.columns.values()) - set(base.columns.values()))[:stats_max]
    new = None
    if leaves:
        index = IndexState.of_statistics(tuple(leaves), {"shard_bytes": SHARD_BYTES})
        kind = kind_named(index.kind)
        new = kind.of_new_columns(handle.on(base), after, index, writing.transaction, writing.leftovers)

    def evolve(newest: Instant) -> Instant:
        if columns_state(newest) != columns_state(base):
            raise CommitConflictError(
                f"{handle.location}: another writer altered the schema concurrently; refresh() the table and call "
                "alter() again"
            )
        if newest.version != base.version and not _fits_nanoseconds(Snapshot(newest, handle.readers), wanted.widen):
            raise CommitConflictError(f"{handle.location}: another writer added timestamps that do not fit nanoseconds")
        following = evolved(newest, wanted)
        if new is None:
            return following
        returned = returned_files(Snapshot(base, handle.readers), Snapshot(newest, handle.readers))
        coverage = new.coverage.with_holes((one, one) for one in returned.tolist())
        return following.with_new_index(replace(new, coverage=coverage))

    return evolve
