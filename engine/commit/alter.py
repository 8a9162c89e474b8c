"""Schema evolution: one action that renames, drops, widens, adds and re-orders top-level columns.

No file is touched. Files that hold an added column already, under a name that no column ever had, are bound anew in the
same version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from ... import canon
from ...errors import InvalidArgumentError, SchemaError
from ..parquet.leaves import plain_type
from ..state import Instant, new_transaction_id
from .adoption import evolver, rebind
from .evolution import Alteration, evolved
from .publish import Change, publish, publish_definition, successor

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
    asked = Alteration(
        rename=_mapping("rename", rename, str, "new names"),
        drop=_names("drop", drop),
        widen={n: plain_type(k) for n, k in _mapping("widen", widen, pa.DataType, "pyarrow types").items()},
        add=added,
        defaults=defaults,
        order=None if order is None else _names("order", order),
    )
    base = handle.instant
    if _state(evolved(base, asked)) == _state(base):
        return base.version
    change = Change(new_transaction_id(), "alter", remember_gone=False, told=_summary(asked))
    leftovers = change.leftovers
    with handle.timeline.markers.held(change.transaction, base.version, "alter", lambda: leftovers.is_lost), leftovers:
        change.evolve = evolver(handle, base, asked, change)
        if asked.add:
            rebind(handle, handle.committed, change.evolve(base), change)
        handle.move_to(_published(handle, base, change))
    return handle.version


def _published(handle: Handle, base: Instant, change: Change) -> Instant:
    if change.results:
        return publish(handle.timeline, handle.readers, base, change)
    assert change.evolve is not None
    evolve = change.evolve
    return publish_definition(
        handle.timeline,
        base,
        change.transaction,
        lambda newest: successor(evolve(newest), change.transaction, change.action, **change.told),
        change.leftovers,
    )


def _state(instant: Instant) -> tuple:
    """What alterations change. (A default stays what it was when its column was added, but for its type.)"""
    return instant.schema, instant.fields


def _summary(asked: Alteration) -> dict[str, object]:
    return {
        "renamed": asked.rename,
        "dropped": list(asked.drop),
        "widened": {name: str(kind) for name, kind in asked.widen.items()},
        "added": {f.name: str(f.type) for f in asked.add},
    }


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
