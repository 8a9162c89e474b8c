"""What verbs that rewrite files share on the driver: which files they may take, and how new ones are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..engine.parquet.footers import open_parquet
from ..engine.scan.file_reader import verify_unchanged
from ..engine.scan.file_tasks import FileTask
from ..errors import NotReadableError
from .old_calendar import shifted_files
from .rewriting_tasks import OldFile

if TYPE_CHECKING:
    from ..engine.scan.plan import Plan
    from ..engine.table import Table
    from ..engine.tasks.spec import TaskSpec

_CODECS = {"UNCOMPRESSED": "none", **{name.upper(): name for name in ("snappy", "gzip", "brotli", "lz4", "zstd")}}


@dataclass(frozen=True)
class RowChanges:
    """What `delete` and `merge` did.

    version            the version made, or the one that there was where nothing was to be changed
    deleted, updated, inserted    rows
    files_rewritten    files that were taken out: what is left of their rows lies in new ones
    files_added        new files
    """

    version: int
    deleted: int = 0
    updated: int = 0
    inserted: int = 0
    files_rewritten: int = 0
    files_added: int = 0


def old_files(plan: Plan, tasks: Sequence[FileTask]) -> list[OldFile]:
    """Files to be rewritten, with the texts of their partitions."""
    files = plan.files()
    texts = dict(zip(*(files.column(name).to_pylist() for name in ("path", "partition")), strict=True))
    return [OldFile(task, texts[task.path]) for task in tasks]


def check_alone(table: Table, plan: Plan, tasks: Sequence[FileTask]) -> None:
    """Raises NotReadableError for files of file groups: without its latest base, an older one would count again; and
    for files whose days of the old calendar Spark's reader would show as others once they are rewritten."""
    files = plan.files()
    grouped = set(files.filter(files.column("file_group").is_valid()).column("path").to_pylist())
    paths = [task.path for task in tasks if task.path in grouped]
    if paths:
        raise NotReadableError(
            f"{paths[0]}: belongs to a file group, which its owner compacts; choose other files by where=", paths=paths
        )
    shifted = [task.path for task in shifted_files(table, table.schema.names, tasks)]
    if shifted:
        raise NotReadableError(
            f"{shifted[0]}: contains dates before 1582 or times before 1900 in the old calendar, which Spark wrote in "
            "mode LEGACY; a rewrite would change them for Spark's own reader; rewrite the file by Spark in mode "
            "CORRECTED, or choose other files by where=",
            paths=shifted,
        )


def with_codec_of(spec: TaskSpec, table: Table, plan: Plan, tasks: Sequence[FileTask]) -> TaskSpec:
    """The spec with the codec of most bytes of the largest file; unchanged where Arrow cannot write that codec.

    Raises NotReadableError where that file is gone or overwritten.
    """
    task = max(tasks, key=lambda task: task.size_bytes)
    sizes: dict[str, int] = {}
    with (
        verify_unchanged(task, table.handle.storage) as entry,
        open_parquet(table.handle.storage, entry, is_checked=False) as file,
    ):
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            for chunk in map(group.column, range(group.num_columns)):
                sizes[chunk.compression] = sizes.get(chunk.compression, 0) + chunk.total_compressed_size
    codec = _CODECS.get(max(sizes, key=sizes.__getitem__, default=""))
    return spec if codec is None else replace(spec, parquet_options={**spec.parquet_options, "compression": codec})
