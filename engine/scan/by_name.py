"""Files in which others find the columns that we mean: by the names, and in the types, that the table has now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from ..state import FileSchema, Instant


def renamed(known: FileSchema, instant: Instant) -> list[tuple[str, str]]:
    """(the table's name, the files' own) of columns that files of a physical schema hold under another name."""
    names = {number: name for name, number in instant.fields.items()}
    return [(names[n], own) for own, n in known.fields.items() if names.get(n, own) != own]


def misread(
    known: FileSchema, instant: Instant, columns: Sequence[str], can_read: Callable[[pa.DataType, str], bool]
) -> str | None:
    """What a reader would get wrong that looks columns up by name, whatever the case of its letters, and takes null for
    what is not there; None where it reads some top-level columns right. `can_read(type in the file, column)`."""
    for name in columns:
        own = known.name_of(instant.fields[name])
        others = [other for other in known.schema.names if other.lower() == name.lower() and other != own]
        if own is None and others:
            return f"column {name!r} is none of theirs, but they hold another, {others[0]!r}"
        if own is None and instant.fields[name] in instant.defaults:
            return f"column {name!r} was added with a default, which is not in the files"
        if own is None:
            continue
        if own != name:
            return f"column {name!r} is {own!r} there, written before it was renamed"
        if others:
            return f"column {name!r} is beside another, {others[0]!r}, which differs in its case alone"
        if not can_read(known.schema.field(own).type, name):
            return f"column {name!r} is {known.schema.field(own).type} there, which cannot be read as the table has it"
    return None
