"""`skipstone doctor`: what is wrong with this environment, and with a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from ..engine.doctor import Check
from ..engine.doctor import doctor as examine
from .arguments import Argument
from .options import AsJson, Ended, IndexPath, Status, storage_options
from .output import count_of, print_json, stdout, working

_STYLES = {"ok": "green", "note": "dim", "warning": "yellow", "problem": "bold red"}


def doctor(
    path: Annotated[
        str | None, Argument(metavar="[PATH]", help="A table's directory; none: the environment alone.")
    ] = None,
    index_path: IndexPath = None,
    as_json: AsJson = False,
) -> None:
    """Check versions, compiled kernels, Java, and a table: storage, clocks, damage, coverage. Status 3 for findings."""
    with working("looking"):
        checks = examine(path, index_path=index_path, storage_options=storage_options())
    findings = [check for check in checks if check.is_finding]
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        _print(checks, len(findings))
    if findings:
        raise Ended(Status.FINDINGS)


def _print(checks: list[Check], findings: int) -> None:
    from rich.text import Text

    screen = stdout()
    width = max(len(check.name) for check in checks)
    for check in checks:
        head = ((f"{check.status:<8}", _STYLES[check.status]), f"{check.name:<{width}}  ")
        screen.print(Text.assemble(*head, check.detail), soft_wrap=True)
        if check.remedy:
            screen.print(Text(f"{' ' * (width + 10)}-> {check.remedy}", style=_STYLES[check.status]), soft_wrap=True)
    screen.print()
    screen.print(
        count_of(findings, "finding") if findings else "nothing found; `skipstone verify --deep` reads every byte",
        style="bold",
    )
