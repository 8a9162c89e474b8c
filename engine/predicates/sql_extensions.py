"""Skipstone's extensions of DuckDB's SQL: names in backticks, and `<=>` for IS NOT DISTINCT FROM."""

from __future__ import annotations

import re

from ...errors import PredicateError

_PIECES = re.compile(
    r"""(?P<refused> (?<!\w)[eE]' | /\* | \$\w*\$)
    | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]*
    | (?P<name> `(?:[^`]|``)*`)
    | (?P<same> <=>)""",
    re.VERBOSE,
)


def in_duckdb_sql(text: str) -> str:
    """The text as DuckDB reads it. Raises PredicateError if the text also has comments in /* */, dollar quotes or
    escape strings: within them these signs may stand for themselves."""
    if "`" not in text and "<=>" not in text:
        return text
    pieces, end = [], 0
    for match in _PIECES.finditer(text):
        if match["refused"]:
            raise PredicateError(
                f"{match['refused']!r} cannot be combined with backticks or <=>; write names in double quotes, and "
                "IS NOT DISTINCT FROM",
                text=text,
                position=match.start(),
            )
        if match["name"] or match["same"]:
            name = (match["name"] or "")[1:-1].replace("``", "`").replace('"', '""')
            pieces += [text[end : match.start()], f'"{name}"' if match["name"] else " IS NOT DISTINCT FROM "]
            end = match.end()
    return "".join([*pieces, text[end:]])
