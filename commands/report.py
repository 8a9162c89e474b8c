"""`skipstone report`: a picture of a table, as one page of HTML."""

from __future__ import annotations

import os
from typing import Annotated

from .advise import read_statements
from .arguments import Option
from .options import AsJson, IndexPath, Path, Version, opened
from .output import bytes_text, print_json, progress, stdout


def report(
    path: Path,
    output: Annotated[str, Option("--output", "-o", metavar="FILE", help="Where the page goes.")] = "report.html",
    from_log: Annotated[str | None, Option(metavar="FILE", help="A log of scans: what they skipped.")] = None,
    queries: Annotated[str | None, Option(metavar="FILE", help="Advice for these queries, as `advise`.")] = None,
    version: Version = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Draw a table as one page that needs no network: sizes, columns, indexes, timeline, what scans skipped."""
    with opened(path, index_path, version) as table, progress() as report:
        texts = None if queries is None else read_statements(queries)
        advice = None if texts is None else table.advise(texts, progress=report)
        table.report(output, log=from_log, advice=advice)
    size = os.path.getsize(output)
    if as_json:
        print_json({"output": os.path.abspath(output), "size_bytes": size})
    else:
        stdout().print(f"{output}: {bytes_text(size)}", soft_wrap=True)
