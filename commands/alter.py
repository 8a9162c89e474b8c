"""`skipstone alter`: columns renamed, dropped, widened, added and re-ordered."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import pyarrow as pa

from .arguments import Option
from .options import AsJson, IndexPath, Path, UsageError, opened, split
from .output import print_json, stdout, text_table

_DECIMAL = re.compile(r"decimal(?:128)?\((\d+), ?(\d+)\)")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), ?tz=(.+)\]")


def alter(
    path: Path,
    rename: Annotated[list[str] | None, Option(metavar="OLD=NEW", help="Give a column another name.")] = None,
    drop: Annotated[list[str] | None, Option(metavar="NAME", help="Take a column away.")] = None,
    widen: Annotated[list[str] | None, Option(metavar="NAME=TYPE", help="Let a column hold more.")] = None,
    add: Annotated[
        list[str] | None, Option(metavar="NAME=TYPE", help="A new column, null in the files that are there.")
    ] = None,
    order: Annotated[str | None, Option(metavar="A,B", help="All columns, in the wanted order.")] = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Change the schema, in one step; no file is touched. Each option but --order may be given several times.

    Types are Arrow's, as int64, double, string, decimal(12,2).
    """
    with opened(path, index_path) as table:
        before = table.version
        table.alter(
            rename=_pairs("--rename", rename),
            drop=drop,
            widen={name: _type(kind) for name, kind in _pairs("--widen", widen).items()},
            add={name: _type(kind) for name, kind in _pairs("--add", add).items()},
            order=split(order),
        )
        is_new = table.version != before
        fields = [{"name": field.name, "type": str(field.type)} for field in table.schema]
        if as_json:
            print_json({"changed": is_new, "version": table.version, "schema": fields})
            return
        screen = stdout()
        screen.print(text_table(["column", "type"], [[field["name"], field["type"]] for field in fields]))
        outcome = f"version {table.version}" if is_new else f"nothing to change: still version {table.version}"
        screen.print(outcome, style="dim")


def _pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise UsageError(f"{option} takes two sides, as a=b, not {text!r}")
        if name in pairs:
            raise UsageError(f"{option} names {name!r} twice")
        pairs[name] = value
    return pairs


def _type(text: str) -> pa.DataType:
    """The Arrow type of that name."""
    try:
        if match := _DECIMAL.fullmatch(text):
            return pa.decimal128(int(match[1]), int(match[2]))
        if match := _ZONED.fullmatch(text):
            return pa.timestamp(match[1], match[2])
        return pa.type_for_alias(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no type; types are Arrow's, as int64, double, string, date32[day], decimal(12,2), "
            "timestamp[us, tz=UTC]"
        ) from None
