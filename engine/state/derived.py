"""Derived columns: what an index covers and no file stores: the elements of a list column, or an expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Expression:
    """An expression over columns that an index covers.

    node      as in `predicates/expressions.py`; its columns are positions in `columns`
    columns   ids of leaves
    """

    node: list[Any]
    columns: tuple[int, ...]


@dataclass(frozen=True)
class DerivedColumn:
    """The elements of a list column (a row has any number of them, and none if its list is null or empty), or an
    expression (a row has one value).

    id            among the ids of columns, and never used twice either
    field         the id of the list column; None for an expression
    expression    None for elements
    """

    id: int
    field: int | None
    expression: Expression | None = None


def distinct_name(name: str, names: set[str]) -> str:
    """What a derived column is called, `tags[]`, `lower(email)`, unless a column's name or path may be the same."""
    while any(name == other or name.startswith(f"{other}.") for other in names):
        name = f"value of {name}"
    return name
