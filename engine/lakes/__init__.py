"""Find live files. This package writes only a marker file.

`detect.py` finds the table that a user names and its format. `directory.py` lists a directory, compares
the listing with a version, and finds the folders that need no listing; `table_marker.py` marks a folder in which rows
were deleted. `table_format.py` is the protocol of a format with a log (`LogSource`, `LogState`),
`column_naming.py` how files name columns. `delta.py` (with `deletion_vectors.py`) and `iceberg.py` (with
`iceberg_columns.py`, `iceberg_catalog.py`) use each format's own library; `hudi/` reads the timeline itself. To add a
format, add a file here, its name in `KINDS`, and an entry in `detect.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DIRECTORY, DELTA, ICEBERG, HUDI = "directory", "delta", "iceberg", "hudi"
KINDS = (DIRECTORY, DELTA, ICEBERG, HUDI)
METADATA_ENDING = ".metadata.json"


def is_log(source: Mapping[str, Any]) -> bool:
    """Return whether a table (by its `Instant.source`) follows a log, which then decides which files are live."""
    return source.get("kind", DIRECTORY) != DIRECTORY
