"""The queries that advice is for: WHERE clauses and SELECTs, one a statement, or the lines of a log of scans."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ...base.versions import shown
from ...errors import InvalidArgumentError, PredicateError
from ..predicates import Node
from ..predicates.parse import parse
from ..scan_log import entries_of

_STRING_OR_COMMENT = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_SELECT = re.compile(r"\s*(select|with|from)\b", re.IGNORECASE)
_WHERE = re.compile(r"\s*where\b", re.IGNORECASE)
_TEXT_SHOWN = 200


@dataclass
class Queries:
    """The queries that were read.

    where     the predicates, each once, with how often it was asked
    unread    (text, reason) of what could not be read
    """

    where: dict[str, tuple[Node, int]] = field(default_factory=dict)
    unread: list[tuple[str, str]] = field(default_factory=list)

    def add(self, where: object, schema: Any) -> None:
        """Add one query: a text, or anything else that `scan` accepts."""
        text = shown(where)
        try:
            read = _where_text(where) if isinstance(where, str) else where
            node = parse(read, schema)
        except PredicateError as error:
            self.refuse(text, str(error))
            return
        key = str(node)
        self.where[key] = node, self.where[key][1] + 1 if key in self.where else 1

    def refuse(self, text: str, reason: str) -> None:
        """Names what could not be read."""
        self.unread.append((text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}…", reason))


def queries_of(given: Iterable[object] | str | None, log: str | os.PathLike[str] | None, handle: Any) -> Queries:
    """Read the arguments of `Table.advise` against the handle's schema."""
    if (given is None) == (log is None):
        raise InvalidArgumentError("advice is for queries=, or for those of log=: give one of them")
    queries, schema = Queries(), handle.schema
    if log is None:
        if isinstance(given, str | bytes | Node) or not isinstance(given, Iterable):
            raise InvalidArgumentError("queries= is a list of WHERE clauses, SELECTs or predicates")
        for one in given:
            queries.add(one, schema)
        return queries
    for entry in entries_of(log):
        if entry is None:
            queries.refuse("a line of the log", "it is no line of a scan log")
        elif entry.get("table") == handle.location and entry["where"] != "TRUE":
            if entry.get("is_whole") is True:
                queries.add(entry["where"], schema)
            else:
                queries.refuse(entry["where"], "the log keeps it without its values, or cut")
    return queries


def statements(text: str) -> list[str]:
    """Return the statements of a file: those that `;` ends or, without any `;`, the lines. Comments are left out."""
    masked = _STRING_OR_COMMENT.sub(lambda m: (" " if m[0][0] in "-/" else "_") * len(m[0]), text)
    sign, pieces, start = ";" if ";" in masked else "\n", [], 0
    while start <= len(text):
        stop = masked.find(sign, start)
        stop = len(text) if stop < 0 else stop
        first = start + len(masked[start:stop]) - len(masked[start:stop].lstrip())
        if first < stop:
            pieces.append(text[first:stop].strip())
        start = stop + 1
    return pieces


def _where_text(text: str) -> str:
    if _SELECT.match(text):
        from ..predicates.sql_allowed import where_of_select

        return where_of_select(text)
    return _WHERE.sub("", text, count=1)
