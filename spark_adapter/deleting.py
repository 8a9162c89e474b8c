"""`delete`: rows out of a table, by writing the files that hold them anew.

Files that may hold a matching row are found by pruning, as of a scan; of which all rows match are taken out unread.
Executors count the matching rows of the others, and write anew, without them, those files that hold some.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from ..engine.open import open_table
from ..engine.progress import Progress, progress_function
from ..engine.rows_by_key.edits import DeleteMatches
from ..engine.rows_by_key.rewrite import OwnWriter, Written, rewrite, with_codec_of
from ..errors import InvalidArgumentError
from .jobs import PARTS_PER_CORE, described, map_parts
from .rewriting import RowChanges, rewritable
from .sessions import read_where
from .shares import OPEN_BYTES, split_evenly
from .spark_versions import slots

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@described("delete")
def delete(
    spark: SparkSession,
    path: str | os.PathLike,
    where: object,
    *,
    index_path: str | os.PathLike | None = None,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress | bool | None = None,
) -> RowChanges:
    """Deletes the rows for which `where` is TRUE; those for which it is FALSE or NULL stay. One commit, or none where
    no row matches.

    Files that hold such rows are written anew, with all that the table's indexes keep of written rows; the old ones
    stay on storage, for older versions, until a `clean` that deletes data. What others append meanwhile stays.

    Args:
        path: the table's directory; executors must see it under the same name.
        where: as for `scan`; all of it must be understood, of a Column too. "true" for every row.
        index_path, storage_options: as for `scan`.
        progress: called as f(step, done, total), or True for a bar on stderr.

    Raises:
        CommitConflictError: another writer took one of the files out meanwhile; the table is as it was.
        PredicateError: `where` cannot be read, or a part of it cannot be tested on rows.
        NotReadableError: a file that may match belongs to a file group, has logs, or deletes that we cannot apply; or
        was overwritten since it was indexed.
        InvalidArgumentError: no `where`; a table that follows the log of another format.
    """
    if where is None:
        raise InvalidArgumentError('delete() takes the rows that go as where=; "true" for every row')
    report = progress_function(progress)
    with open_table(path, index_path=index_path, storage_options=storage_options) as table:
        table.handle.check_latest()
        table.handle.check_owns_files()
        plan = table.scan(read_where(spark, where, table.schema))
        tasks = plan.planning.readable_tasks()
        if not tasks:
            return RowChanges(table.version)
        files = rewritable(table, plan, tasks)
        slices = split_evenly([file.task.size_bytes + OPEN_BYTES for file in files], PARTS_PER_CORE * slots(spark))
        with table.transaction() as tx:
            spec = with_codec_of(tx.task_spec(), plan.planning.storage, tasks)
            edit, context = DeleteMatches(plan.bound), plan.planning.context
            written: list[Written] = []

            def take(part: Written) -> None:
                tx.add_task(part.results)
                written.append(part)

            map_parts(
                spark,
                partial(rewrite, edit=edit, context=context, open_writer=partial(OwnWriter, spec)),
                [files[part] for part in slices],
                step="files, parts",
                progress=report,
                on_result=take,
            )
            deleted = {path: count for part in written for path, count in part.changed.items()}
            tx.remove(list(deleted))
        added = sum(result.files.num_rows for part in written for result in part.results)
        return RowChanges(table.version, deleted=sum(deleted.values()), files_rewritten=len(deleted), files_added=added)
