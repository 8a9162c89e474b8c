"""What `delete`, `merge` and `cluster` have in common on the driver. The engine writes the files (`rows_by_key`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine.rows_by_key.rewrite import OldFile, old_files
from ..errors import NotReadableError
from .old_calendar import shifted_files

if TYPE_CHECKING:
    from ..engine.scan.file_tasks import FileTask
    from ..engine.scan.plan import Plan
    from ..engine.table import Table


@dataclass(frozen=True)
class RowChanges:
    """What `delete` and `merge` did.

    version            the version created, or the present one if nothing changed
    deleted, updated, inserted    rows
    files_rewritten    files that were removed: what is left of their rows is in new ones
    files_added        new files
    """

    version: int
    deleted: int = 0
    updated: int = 0
    inserted: int = 0
    files_rewritten: int = 0
    files_added: int = 0


def rewritable(table: Table, plan: Plan, tasks: Sequence[FileTask]) -> list[OldFile]:
    """The files of some tasks, to be rewritten.

    Raises NotReadableError for files of file groups, and for files whose days of the old calendar Spark's reader would
    show as others once they are rewritten.
    """
    files = old_files(plan.planning, tasks)
    shifted = [task.path for task in shifted_files(table, table.schema.names, tasks)]
    if shifted:
        raise NotReadableError(
            f"{shifted[0]}: contains dates before 1582 or times before 1900 in the old calendar, which Spark wrote in "
            "mode LEGACY; a rewrite would change them for Spark's own reader; rewrite the file by Spark in mode "
            "CORRECTED, or choose other files by where=",
            paths=shifted,
        )
    return files
