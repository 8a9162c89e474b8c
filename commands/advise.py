"""`skipstone advise`: which index, or which order of rows, would help given queries."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated

from ..engine.advice.advise import CLUSTER, HEADINGS, Advice, Suggestion, cells
from ..engine.advice.queries import statements
from ..errors import StorageError
from .arguments import Option
from .options import AsJson, IndexPath, Path, UsageError, opened
from .output import print_json, progress, stdout, text_table


def advise(
    path: Path,
    queries: Annotated[
        str | None, Option(metavar="FILE", help="WHERE clauses or SELECTs, each ended by ; or each on a line.")
    ] = None,
    from_log: Annotated[str | None, Option(metavar="FILE", help="A log of scans: SKIPSTONE_SCAN_LOG.")] = None,
    sample_files: Annotated[int, Option(min=1, help="Try on at most this many files.")] = 32,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Try indexes and orders of rows on a sample: what each would let queries skip, and what it costs."""
    if (queries is None) == (from_log is None):
        raise UsageError("advice is for the queries of --queries or of --from-log: give one of them")
    texts = None if queries is None else read_statements(queries)
    with opened(path, index_path) as table, progress() as report:
        advice = table.advise(texts, log=from_log, sample_files=sample_files, progress=report)
    if as_json:
        suggested = [{**asdict(one), "saved_share": one.saved_share} for one in advice.suggestions]
        unread = [{"text": text, "reason": reason} for text, reason in advice.unread]
        print_json({**asdict(advice), "suggestions": suggested, "unread": unread})
    else:
        _print(advice, path, index_path)


def _print(advice: Advice, path: str, index_path: str | None) -> None:
    """The suggestions as a table."""
    screen = stdout()
    for line in advice.head():
        screen.print(line, soft_wrap=True)
    if advice.suggestions:
        screen.print()
        screen.print(text_table(HEADINGS, [list(cells(one)) for one in advice.suggestions], right=HEADINGS[1:]))
        screen.print()
        first = _command(advice.suggestions[0], path, index_path)
        screen.print(f"to begin with: {first}", style="bold", soft_wrap=True)
    for line in advice.tail():
        screen.print(line, style="yellow", soft_wrap=True)


def _command(suggestion: Suggestion, path: str, index_path: str | None) -> str:
    """What does it in a shell; in Python for what no command does."""
    if suggestion.kind == CLUSTER:
        return suggestion.code
    where = [] if index_path is None else ["--index-path", index_path]
    return shlex.join(["skipstone", "index", "add", path, *suggestion.columns, "--kind", suggestion.kind, *where])


def read_statements(path: str) -> list[str]:
    """The statements of a file. Raises StorageError where it cannot be read."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return statements(file.read())
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path}: the queries cannot be read ({error})") from error
