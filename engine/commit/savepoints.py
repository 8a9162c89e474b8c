"""Savepoints: names for versions, kept in every instant from the one that made them until they are dropped."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import CommitConflictError, InvalidArgumentError
from ..state import Instant, new_transaction_id
from ..state.leftovers import Leftovers
from .publish import publish_definition, successor

if TYPE_CHECKING:
    from ..handle import Handle


def make_savepoint(handle: Handle, name: str) -> int:
    """See `Table.savepoint`."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise InvalidArgumentError(f"a savepoint's name is a text that can be printed, not {name!r}")
    _check_free(handle.instant, name)
    base, transaction = handle.instant, new_transaction_id()

    def following(latest: Instant) -> Instant:
        if latest.version != base.version:
            try:
                _check_free(latest, name)
            except InvalidArgumentError as error:
                raise CommitConflictError(f"another writer was first: {error}") from error
        latest.check_kept(base.version)
        after = successor(latest, transaction, "savepoint", savepoint=name, named=base.version)
        return replace(after, savepoints={**latest.savepoints, name: base.version})

    handle.move_to(publish_definition(handle.timeline, base, transaction, following, Leftovers()))
    return handle.version


def drop_savepoint(handle: Handle, name: str) -> int:
    """See `Table.drop_savepoint`."""
    base, transaction = handle.instant, new_transaction_id()
    named = base.version_of_savepoint(name)

    def following(latest: Instant) -> Instant:
        if latest.savepoints.get(name) != named:
            raise CommitConflictError(f"another writer dropped the savepoint {name!r} meanwhile")
        after = successor(latest, transaction, "savepoint", dropped=name)
        return replace(after, savepoints={n: v for n, v in latest.savepoints.items() if n != name})

    handle.move_to(publish_definition(handle.timeline, base, transaction, following, Leftovers()))
    return handle.version


def _check_free(latest: Instant, name: str) -> None:
    if name in latest.savepoints:
        raise InvalidArgumentError(
            f"there is a savepoint {name!r} of version {latest.savepoints[name]}: drop it, or take another name"
        )
