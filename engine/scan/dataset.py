"""A plan as a pyarrow Dataset: for engines that read Parquet themselves, and only want to know what to leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from .rows import check_identity

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from ..storage import Counted
    from .fine import RowGroups
    from .tasks import FileTask


def dataset_of(pairs: list[tuple[FileTask, RowGroups]], schema: pa.Schema, storage: Counted) -> ds.FileSystemDataset:
    """The surviving row groups as a Dataset of the table's schema. It holds every row of them: repeat the predicate.

    Raises NotReadableError for a file that is gone, or not the one that was planned.
    """
    import pyarrow.dataset as ds
    import pyarrow.fs

    form, disk = ds.ParquetFileFormat(), pyarrow.fs.LocalFileSystem()
    fragments = []
    for task, groups in pairs:
        if groups.kept == []:
            continue
        check_identity(task, storage)
        fragments.append(
            form.make_fragment(
                storage.local_path(task.path),
                filesystem=disk,
                partition_expression=_partition(task),
                row_groups=groups.kept,
            )
        )
    return ds.FileSystemDataset(fragments, schema, form, disk)


def _partition(task: FileTask) -> pc.Expression | None:
    """What a file's path says of its rows."""
    said = None
    for name, value in task.partition.items():
        one = pc.field(name) == value if value.is_valid else pc.field(name).is_null()
        said = one if said is None else said & one
    return said
