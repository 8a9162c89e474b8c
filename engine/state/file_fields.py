"""The fields of a file, as tasks report them and the manifest keeps them."""

from __future__ import annotations

import pyarrow as pa

# What a writer, a listing or a footer tells of a file. `modified_ns`, `etag` and `deletes` are its identity beside
# path and size; `rows_exact` is False where the row count is only a bound; `merge` tells how a log's rows meet the
# base's. Files of one slice share `file_group`, unique within the partition, and `slice_instant`.
FILE_FIELDS = [
    pa.field("path", pa.string()),
    pa.field("size_bytes", pa.int64()),
    pa.field("modified_ns", pa.int64()),
    pa.field("etag", pa.string()),
    pa.field("deletes", pa.string()),
    pa.field("row_count", pa.int64()),
    pa.field("rows_exact", pa.bool_()),
    pa.field("row_groups", pa.int32()),
    pa.field("kind", pa.string()),
    pa.field("file_group", pa.string()),
    pa.field("slice_instant", pa.string()),
    pa.field("commit", pa.string()),
    pa.field("merge", pa.string()),
    pa.field("schema_id", pa.int32()),
]
BASE, LOG, DELETE, ROLLBACK = "base", "log", "delete", "rollback"
KINDS = (BASE, LOG, DELETE, ROLLBACK)

FILES_SCHEMA = pa.schema([pa.field("partition", pa.string()), *FILE_FIELDS])
