"""`skipstone rebind`: a lake that was copied or moved takes its indexes along."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Annotated

from .arguments import Option
from .options import AsJson, IndexPath, Path, opened
from .output import print_json, progress, stdout


def rebind(
    path: Path,
    trusted: Annotated[
        bool, Option("--trusted", help="You vouch that files of the same size and footer hold the same data.")
    ] = False,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Record the files of a lake that was copied, moved or restored, as they stand here.

    Filters and secondary indexes come along of files whose size, footer and data agree with what was indexed: the data
    is read, and compared by digests. With --trusted it is not read. `skipstone sync --refresh` covers the others anew.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*this index was made at")  # what is done here needs no advice
        with opened(path, index_path) as table, progress() as report:
            result = table.rebind(trusted=trusted, progress=report)
            kinds = table.indexes().column("kind").to_pylist()
    if as_json:
        print_json(dataclasses.asdict(result))
        return
    screen = stdout()
    if not (result.rebound or result.uncovered or result.changed or result.removed or result.added):
        screen.print(f"nothing to rebind: still version {result.version}")
        return
    screen.print(
        f"version {result.version}: {result.rebound:,} files rebound, {result.uncovered:,} uncovered, "
        f"{result.changed:,} changed, {result.removed:,} removed, {result.added:,} added",
        soft_wrap=True,
    )
    lacking = result.uncovered + result.changed
    if lacking and any(kind != "stats" for kind in kinds):
        screen.print(
            f"filters and secondary indexes do not cover {lacking:,} files: skipstone sync --refresh {path}",
            soft_wrap=True,
        )
    if result.uncovered:
        screen.print(
            f"no digest was kept of what was indexed of {result.uncovered:,} of them; where you know that they are the "
            "same, rebind a fresh copy with --trusted",
            soft_wrap=True,
        )
