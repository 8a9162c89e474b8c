"""`skipstone verify`: whether the index and the files that it names are whole."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from .arguments import Option
from .options import AsJson, Ended, IndexPath, Path, Status, opened
from .output import print_json, stdout, text_table, working


def verify(
    path: Path,
    deep: Annotated[bool, Option("--deep", help="Read every byte of the index, and every footer.")] = False,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Check that what the index names is there, whole, and what it was. Status 3 where something is wrong."""
    with opened(path, index_path) as table:
        with working("verifying"):
            findings = table.verify(deep=deep)
        if as_json:
            print_json([asdict(finding) for finding in findings])
        elif findings:
            rows = [[f.kind, f.path, f.message] for f in findings]
            stdout().print(text_table(["finding", "file", "what is wrong"], rows))
        else:
            checked = "every byte of the index and every footer" if deep else "index and files are as they were"
            stdout().print(f"sound: {checked}; version {table.version}", style="green")
    if findings:
        raise Ended(Status.FINDINGS)
