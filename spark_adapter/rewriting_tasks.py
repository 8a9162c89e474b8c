"""What executors do for `delete` and `merge`: apply an edit to files, or find the keys that files contain."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..engine.rows_by_key.edits import Edit, KeyedRows
from ..engine.rows_by_key.rewrite import OldFile, OwnWriter, Written, rewrite, rows_of
from ..engine.scan.file_tasks import ReadContext
from ..engine.storage import Counted, open_storage
from ..engine.tasks.spec import TaskSpec


def rewrite_part(
    files: list[OldFile], edit: Edit, keyed: KeyedRows | None, context: ReadContext, spec: TaskSpec
) -> tuple[Written, np.ndarray]:
    """Rewrite files with an edit. Return what was written, and the rows (int64) of `keyed` whose keys were found."""
    written = rewrite(files, edit, context, partial(OwnWriter, spec))
    return written, np.flatnonzero([] if keyed is None else keyed.found)


def find_part(files: list[OldFile], keyed: KeyedRows, context: ReadContext) -> np.ndarray:
    """The rows (int64) of `keyed` whose keys some files contain."""
    data = Counted(open_storage(context.location, context.storage_options))
    for file in files:
        for rows in rows_of(file, context, data):
            keyed.find(rows)
    return np.flatnonzero(keyed.found)
