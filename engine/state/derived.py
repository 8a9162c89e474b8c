"""Derived columns: what an index covers and no file stores, as the elements of a list column."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DerivedColumn:
    """The elements of a list column: a row has any number of them, and none if its list is null or empty.

    id      among the ids of columns, and never used twice either
    field   the id of the top-level column
    """

    id: int
    field: int


def name_of_elements(column: str, names: set[str]) -> str:
    """What the elements of a column are called: `tags[]`, unless a column's name or path may be the same."""
    name = f"{column}[]"
    while any(name == other or name.startswith(f"{other}.") for other in names):
        name = f"elements of {name}"
    return name
