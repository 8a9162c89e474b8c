"""The verbs that keep a table whole, small and fast, change its schema, or undo what was done."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Sequence
from typing import Annotated

import pyarrow as pa

from ..engine.shown import note_of
from ..engine.table import Table
from .arguments import (
    Argument,
    AsJson,
    IndexPath,
    OpenTable,
    Option,
    Path,
    Status,
    UsageError,
    storage_options,
)
from .output import (
    answer,
    answer_rows,
    bytes_text,
    confirm,
    count_of,
    first_lines,
    print_rows,
    records,
    stdout,
    working,
)

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGE = re.compile(rf"(\d+(?:\.\d+)?)([{''.join(_UNITS)}])")
_DECIMAL = re.compile(r"decimal(?:128)?\((\d+), ?(\d+)\)")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), ?tz=(.+)\]")


# -- care -------------------------------------------------------------------------------------------------------------


def optimize(table: OpenTable, as_json: AsJson = False) -> None:
    """Index missing files, recompute bounds, merge runs. Readers are not disturbed."""
    before = table.version
    table.optimize()
    is_new = table.version != before
    value = {"changed": is_new, "version": table.version, "indexes": records(table.indexes())}
    answer(as_json, value, f"version {table.version}" if is_new else f"nothing to do: still version {table.version}")


def clean(
    table: OpenTable,
    retain: Annotated[int, Option(metavar="N", help="Keep the last N versions.")] = 10,
    min_age: Annotated[
        str, Option(metavar="AGE", help="Keep what was in use more recently than this: 90s, 30m, 24h, 7d.")
    ] = "24h",
    delete_data: Annotated[bool, Option(help="Also remove data files that no remaining version names.")] = False,
    dry_run: Annotated[bool, Option(help="Only show what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove files that only old versions name, and files of writers that failed."""
    age = _age(min_age)
    before = table.version
    removed = table.clean(retain_versions=retain, min_age=age, delete_data=delete_data, dry_run=dry_run)
    note = note_of(removed)
    rows = removed.to_pylist()
    shown = [f"{row['kind']:<6}{bytes_text(row['size_bytes']):>10}  {row['path']}" for row in rows if dry_run]
    done = _removed_text("would go" if dry_run else "removed", removed, table.version)
    if not rows:
        still = "nothing to clean: still " if table.version == before else "no file was removed: "
        done = f"{still}version {table.version}{f'; {note}' if note else ''}"
    value = {"version": table.version, "dry_run": dry_run, "files": records(removed), "note": note}
    answer(as_json, value, *first_lines(shown), done)


def _age(text: str) -> dt.timedelta:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--min-age is a number and a unit, as 90s, 30m, 1h or 7d, not {text!r}")
    return dt.timedelta(**{_UNITS[match[2]]: float(match[1])})


def _removed_text(verb: str, removed: pa.Table, version: int) -> str:
    rows = removed.to_pylist()
    total, data = bytes_text(sum(row["size_bytes"] for row in rows)), sum(row["kind"] == "data" for row in rows)
    return f"{verb}: {count_of(len(rows), 'file')}, {total}, {data:,} of them data; version {version}"


def purge(
    table: OpenTable,
    drop_savepoints: Annotated[bool, Option(help="Drop all savepoints first.")] = False,
    min_age: Annotated[
        str,
        Option(metavar="AGE", help="Refuse if a transaction wrote a file more recently than this and did not commit."),
    ] = "24h",
    yes: Annotated[bool, Option(help="Do it without asking.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove all that was deleted: old versions, dead data files, and deleted values in the index. Asks first.

    No earlier version can be opened or restored afterwards. Bloom filters have bits of hashes, and may stay.
    """
    age = _age(min_age)
    if as_json and not yes:
        raise UsageError("with --json there is no question: pass --yes")
    if not yes and not confirm(f"Remove all that was deleted before version {table.version}, for good?"):
        stdout().print("nothing was done")
        return
    removed = table.purge(drop_savepoints=drop_savepoints, min_age=age)
    value = {"version": table.version, "files": records(removed)}
    answer(as_json, value, _removed_text("removed", removed, table.version))


def adopt(path: Path, index_path: IndexPath = None, as_json: AsJson = False) -> Status:
    """Accept a table that was copied, moved or restored, and keep its index.

    A file keeps its index entries if its size, its schema, its row counts and its footer are the recorded ones. No data
    is read: you vouch that such a file contains the rows that were indexed. Other files are named, and handled as by
    `skipstone sync`.
    """
    from ..engine.adopt import adopt as adopt_table

    with working("adopting"):
        result = adopt_table(path, index_path=index_path, storage_options=storage_options())
    lists = {"changed": result.changed, "added": result.added, "removed": result.removed}
    counts = ", ".join(f"{len(paths):,} {name}" for name, paths in lists.items())
    lines = [f"{name}: {one}" for name, paths in lists.items() for one in paths]
    lines += [f"quarantined: {one}: {reason}" for one, reason in result.quarantined.items()]
    hint = [f"to index the changed and added files: skipstone sync --refresh {path}"]
    head = f"version {result.version}: {count_of(result.kept, 'file')} kept, {counts}"
    is_new = result.changed or result.added
    answer(as_json, dataclasses.asdict(result), head, *first_lines(lines), *(hint if is_new else []))
    return Status.QUARANTINED if result.quarantined else Status.OK


def verify(
    table: OpenTable,
    deep: Annotated[bool, Option(help="Read every byte of the index, and every footer.")] = False,
    as_json: AsJson = False,
) -> Status:
    """Check that what the index names exists, whole and unchanged. Status 3 if something is wrong."""
    with working("verifying"):
        findings = table.verify(deep=deep)
    rows = [dataclasses.asdict(finding) for finding in findings]
    if findings and not as_json:
        print_rows(rows, ["kind", "path", "message"])
    else:
        checked = "every byte of the index and every footer" if deep else "index and files are as they were"
        answer(as_json, rows, f"sound: {checked}; version {table.version}")
    return Status.FINDINGS if findings else Status.OK


# -- schema -----------------------------------------------------------------------------------------------------------


def alter(
    table: OpenTable,
    rename: Annotated[list[str] | None, Option(metavar="OLD=NEW", help="Give a column another name.")] = None,
    drop: Annotated[list[str] | None, Option(metavar="NAME", help="Drop a column.")] = None,
    widen: Annotated[list[str] | None, Option(metavar="NAME=TYPE", help="Give a column a wider type.")] = None,
    add: Annotated[
        list[str] | None, Option(metavar="NAME=TYPE", help="Add a column, null in the files that exist.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change the schema, in one step; no file is touched. Each option may be given several times.

    Types are Arrow's, as int64, double, string, decimal(12,2).
    """
    before = table.version
    table.alter(
        rename=_pairs("--rename", rename),
        drop=drop,
        widen={name: _type(text) for name, text in _pairs("--widen", widen).items()},
        add={name: _type(text) for name, text in _pairs("--add", add).items()},
    )
    fields = [{"name": field.name, "type": str(field.type)} for field in table.schema]
    value = {"changed": table.version != before, "version": table.version, "schema": fields}
    done = f"version {table.version}" if value["changed"] else f"nothing to change: still version {table.version}"
    answer(as_json, value, *(f"{field['name']}  {field['type']}" for field in fields), done)


def _pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not (name and sign and value):
            raise UsageError(f"{option} has two sides, as in a=b, not {text!r}")
        if name in pairs:
            raise UsageError(f"{option} names {name!r} twice")
        pairs[name] = value
    return pairs


def _type(text: str) -> pa.DataType:
    """Return the Arrow type of a name."""
    try:
        if match := _DECIMAL.fullmatch(text):
            return pa.decimal128(int(match[1]), int(match[2]))
        if match := _ZONED.fullmatch(text):
            return pa.timestamp(match[1], match[2])
        return pa.type_for_alias(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no type; types are Arrow's, such as int64, double, string, date32[day], decimal(12,2), "
            "timestamp[us, tz=UTC]"
        ) from None


# -- undo -------------------------------------------------------------------------------------------------------------


def rollback(
    table: OpenTable,
    n: Annotated[int, Argument(metavar="N", help="How many versions to undo, the newest first.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Undo the newest versions: remove what they added, restore what they removed."""
    before = table.version
    table.rollback(n)
    _print_change(table, before, as_json, rolled_back=before - n + 1)


def restore(
    table: OpenTable,
    version: Annotated[int | None, Option(metavar="N", help="The version whose files become live again.")] = None,
    savepoint: Annotated[str | None, Option(metavar="NAME", help="The same, by the name of a savepoint.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make the live files those of an older version again; the schema and the indexes stay."""
    before = table.version
    table.restore(version, savepoint=savepoint)
    named = version if savepoint is None else table.handle.instant.version_of_savepoint(savepoint)
    _print_change(table, before, as_json, restored=named)


def _print_change(table: Table, before: int, as_json: bool, **action: int | None) -> None:
    latest, totals = table.handle.instant.summary, table.handle.instant.totals
    is_new = table.version != before and latest.items() >= action.items()  # else another writer made the latest
    added, removed = (latest["files_added"], latest["files_removed"]) if is_new else (0, 0)
    counts = {"files_back": added, "files_removed": removed, "files": totals["files"], "rows": totals["rows"]}
    done = f"version {table.version}: {count_of(added, 'file')} restored, {removed:,} removed"
    answer(
        as_json,
        {"changed": is_new, "version": table.version, **action, **counts},
        done if is_new else f"nothing to change: still version {table.version}",
        f"{count_of(totals['files'], 'file')}, {count_of(totals['rows'], 'row')}",
    )


def savepoint(
    table: OpenTable,
    name: Annotated[str | None, Argument(metavar="NAME", help="The name for the latest version.")] = None,
    drop: Annotated[bool, Option(help="Drop the savepoint of that name.")] = False,
    list_: Annotated[bool, Option("--list", help="Show the savepoints.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give the latest version a name, which keeps it from being cleaned; or drop a name, or list them."""
    if list_ == (name is not None) or (drop and name is None):
        raise UsageError("pass the NAME of a savepoint to create or to --drop, or only --list")
    if name is None:
        answer_rows(as_json, table.savepoints())
        return
    named = table.handle.instant.savepoints.get(name) if drop else table.version
    version = table.drop_savepoint(name) if drop else table.savepoint(name)
    text = f"savepoint {name!r}: version {named}"
    if drop:
        text = f"savepoint {name!r} is dropped; version {named} stays until it is cleaned"
    answer(as_json, {"version": version, "savepoint": name, "of": named, "dropped": drop}, text)
