"""Schema evolution: one action that renames, drops, widens, adds and re-orders top-level columns.

No file is touched. A column is its id, whatever it is called: what was recorded of a file says which ids its physical
names stand for, so statistics and filters follow a rename, and a column that takes over an old name begins anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from ... import canon
from ...errors import CommitConflictError, InvalidArgumentError, SchemaError
from ..ingest.footers import leaf_types, plain_type
from ..ingest.leaves import top_level
from ..kinds import known_kind
from ..manifest.writing import SHARD_BYTES
from ..predicates.widening import is_list, merged_type
from ..timeline import IndexState, Instant, Run, new_transaction_id
from .leftovers import Leftovers
from .publish import publish_definition, successor
from .schemas import check_table_schema, identified, leaves_below
from .stat_rows import first_stats
from .stats_index import stats_of_new

if TYPE_CHECKING:
    from ..table import Table

Added: TypeAlias = Mapping[str, pa.DataType | pa.Field | pa.Scalar] | pa.Field | pa.Schema | Sequence[pa.Field]


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


def alter(
    table: Table,
    rename: Mapping[str, str] | None,
    add: Added | None,
    drop: str | Sequence[str] | None,
    widen: Mapping[str, pa.DataType] | None,
    order: Sequence[str] | None,
) -> int:
    """See `Table.alter`."""
    added, defaults = _added(add)
    asked = Alteration(
        rename=_mapping("rename", rename, str, "new names"),
        drop=_names("drop", drop),
        widen={n: plain_type(k) for n, k in _mapping("widen", widen, pa.DataType, "pyarrow types").items()},
        add=added,
        defaults=defaults,
        order=None if order is None else _names("order", order),
    )
    base = table.instant
    transaction = new_transaction_id()
    if _state(altered(base, asked, transaction)) == _state(base):
        return base.version

    def following(latest: Instant) -> Instant:
        if _state(latest) != _state(base):
            raise CommitConflictError(
                f"{table.location}: another writer altered the schema meanwhile; refresh() the table, and ask again "
                "for what is still wanted"
            )
        after = altered(latest, asked, transaction)
        if new is None:
            return after
        state, aggregates = new
        number = after.next["index"]
        runs = (*state.runs, *(aggregates if latest.version == base.version else ()))
        coverage = state.coverage.with_segment(after.version)
        after = replace(after, next={**after.next, "index": number + 1})
        return after.with_index(replace(state, id=number, runs=runs, coverage=coverage))

    leftovers = Leftovers()
    with table.timeline.markers.held(transaction, base.version, "alter", lambda: leftovers.is_lost), leftovers:
        new = _new_stats(table, altered(base, asked, transaction), transaction, leftovers)
        table.move_to(publish_definition(table.timeline, base, transaction, following, leftovers))
    return table.version


def _new_stats(
    table: Table, after: Instant, transaction: str, leftovers: Leftovers
) -> tuple[IndexState, tuple[Run, ...]] | None:
    """Statistics of the leaves that come with `after`, kept beside the others, so that those are not written anew."""
    leaves = sorted(set(after.columns.values()) - set(table.instant.columns.values()))
    if not leaves:
        return None
    index = IndexState(0, "stats", tuple(leaves), {"shard_bytes": SHARD_BYTES}, "commit")
    return stats_of_new(table, after, index, transaction, leftovers)


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


def _state(instant: Instant) -> tuple:
    """What alterations change. (A default stays what it was when its column was added, but for its type.)"""
    return instant.schema, instant.fields


def altered(base: Instant, asked: Alteration, transaction: str) -> Instant:
    """The instant after `base`, with its schema changed. Raises SchemaError for what cannot be done to it."""
    _check_names(base, asked)
    schema, fields = _schema(base, asked)
    leaves = {
        (base.fields[name], below): base.columns[path] for path, (name, below) in leaves_below(base.schema).items()
    }
    numbers, columns, following = identified(schema, fields, leaves, base.next)
    names = {number: name for name, number in numbers.items()}
    kept = {number: value for number, value in base.defaults.items() if number in names}
    kept.update((numbers[name], value) for name, value in asked.defaults.items())
    after = successor(
        base,
        transaction,
        "alter",
        renamed=asked.rename,
        dropped=list(asked.drop),
        widened={name: str(kind) for name, kind in asked.widen.items()},
        added={f.name: str(f.type) for f in asked.add},
    )
    return replace(
        after,
        schema=schema,
        fields=numbers,
        columns=columns,
        next=following,
        defaults={number: value.cast(schema.field(names[number]).type) for number, value in kept.items()},
        indexes=indexes_left(after, set(columns.values())),
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


# -- arguments --------------------------------------------------------------------------------------------------------


def _mapping(argument: str, given: Any, kind: type, told: str) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(n, str) and isinstance(v, kind) for n, v in given.items()):
        raise InvalidArgumentError(f"{argument}= maps names of columns to {told}, not {given!r}")
    return dict(given)


def _names(argument: str, given: Any) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else [] if given is None else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"{argument}= is a list of names of columns, not {given!r}")
    return tuple(names)


def _added(given: Any) -> tuple[tuple[pa.Field, ...], dict[str, pa.Scalar]]:
    """The fields to add, and the defaults of those that were given with one."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        fields = [given] if isinstance(given, pa.Field) else [] if given is None else given
        if not isinstance(fields, (Sequence, pa.Schema)) or not all(isinstance(f, pa.Field) for f in fields):
            raise InvalidArgumentError(f"add= is a mapping of names to types, or pyarrow fields, not {given!r}")
        pairs = [(f.name, f) for f in fields]
    added: dict[str, pa.Field] = {}
    defaults = {}
    for name, what in pairs:
        if not isinstance(name, str) or not isinstance(what, (pa.DataType, pa.Field, pa.Scalar)):
            raise InvalidArgumentError(
                f"add= gives {name!r} a pyarrow type, field or scalar (its default), not {what!r}"
            )
        if isinstance(what, pa.Field) and what.name != name:
            raise SchemaError(f"add= calls a column {name!r} and, in its field, {what.name!r}")
        if name in added:
            raise SchemaError(f"add= names {name!r} twice")
        if isinstance(what, pa.Field) and not what.nullable:
            raise SchemaError(f"column {name!r} must take nulls: the files that are there lack it")
        kind = plain_type(what if isinstance(what, pa.DataType) else what.type)
        added[name] = pa.field(name, kind)
        if isinstance(what, pa.Scalar) and what.is_valid:
            if canon.order_class(kind) is None:
                raise SchemaError(f"column {name!r}: a default is one plain value, not a {kind}; begin it as null")
            defaults[name] = what if what.type == kind else what.cast(kind)
    return tuple(added.values()), defaults
