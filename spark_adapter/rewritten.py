"""How the files of a rewrite are to be: as large as was asked, and compressed as those that they replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..engine.parquet.footers import open_parquet
from ..engine.scan.file_reader import as_planned

if TYPE_CHECKING:
    from ..engine.scan.plan import Plan
    from ..engine.scan.tasks import FileTask
    from ..engine.table import Table
    from ..engine.tasks.spec import TaskSpec

_CODECS = {"UNCOMPRESSED": "none", **{name.upper(): name for name in ("snappy", "gzip", "brotli", "lz4", "zstd")}}


def sized(spec: TaskSpec, tasks: Sequence[FileTask], sizes: Mapping[str, int | None]) -> TaskSpec:
    """The spec with other sizes, as `TaskSpec.sized` has them; `file_rows` is what `file_bytes` come to, at the bytes
    that a row of these files takes now. Raises InvalidArgumentError for a size that is none."""
    spec = spec.sized(sizes)
    if sizes.get("file_bytes") is None:
        return spec
    row_bytes = sum(task.size_bytes for task in tasks) / max(1, sum(task.row_count for task in tasks))
    by_bytes = max(1, int(spec.file_bytes / max(row_bytes, 1e-9)))
    return replace(spec, file_rows=by_bytes if sizes.get("file_rows") is None else min(spec.file_rows, by_bytes))


def compressed_alike(spec: TaskSpec, table: Table, plan: Plan, tasks: Sequence[FileTask]) -> TaskSpec:
    """The spec with the codec that most bytes of the largest file are compressed by; as it is where nothing is, or by
    what Arrow cannot write.

    Raises NotReadableError where that file is gone or overwritten.
    """
    task = max(tasks, key=lambda task: task.size_bytes)
    sizes: dict[str, int] = {}
    with (
        as_planned(task, table.storage) as entry,
        open_parquet(table.storage, entry, **plan.planning.context.parquet_options) as file,
    ):
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            for chunk in map(group.column, range(group.num_columns)):
                sizes[chunk.compression] = sizes.get(chunk.compression, 0) + chunk.total_compressed_size
    codec = _CODECS.get(max(sizes, key=sizes.__getitem__, default=""))
    return spec if codec is None else replace(spec, parquet_options={**spec.parquet_options, "compression": codec})
