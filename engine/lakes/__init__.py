"""Where live files come from. Nothing in this room writes.

`directory.py` lists a directory; `detection.py` finds out which format a directory belongs to. `log.py` says what the
log of another table format must answer (`LogSource`, `LogState`): its latest state, the files that are live in it, what
changed since another, the rows that deletes take out. `delta.py` and `iceberg.py` answer it through each format's own
library (`delta_files.py` and `iceberg_files.py` look at a stranger's files first, `delta_vectors.py` reads which rows
were deleted; `iceberg_columns.py`, `iceberg_catalog.py`), `hudi/` by reading the timeline itself. A new format is a
file here, which `log_files.py` helps to write, its name in `KINDS`, and a line each in `sources.py` and `detection.py`.
`locations.py` reads what users name a table by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DIRECTORY, DELTA, ICEBERG, HUDI = "directory", "delta", "iceberg", "hudi"
KINDS = (DIRECTORY, DELTA, ICEBERG, HUDI)
METADATA_ENDING = ".metadata.json"


def is_log(source: Mapping[str, Any]) -> bool:
    """Whether a table (by its `Instant.source`) follows a log of another format, which then owns the files."""
    return source.get("kind", DIRECTORY) != DIRECTORY
