"""The marker file of a folder whose table removed rows or files. It identifies the folder even if its index is lost.

The data files of removed rows stay in the folder until `clean(delete_data=True)`. A program that lists the folder
without the index would count them again. So the file is written before the first commit that leaves such files.
"""

from __future__ import annotations

import json
from typing import Any

from ...errors import CorruptionError, InvalidArgumentError
from ..storage import FileMissingError, Storage

MARKER = "_skipstone_table.json"
_BYTES_MAX = 1 << 16
_FOR_PEOPLE = (
    "Skipstone keeps an index of this folder. Some Parquet files here contain deleted or replaced rows: read the "
    "folder through Skipstone, or run `skipstone clean --delete-data` first."
)


def write_marker(storage: Storage, table_id: str, index_uri: str) -> None:
    """Write the file into the table's directory."""
    content = {"table": table_id, "index": index_uri, "note": _FOR_PEOPLE}
    storage.put(MARKER, json.dumps(content, indent=2).encode())


def read_marker(storage: Storage) -> dict[str, Any] | None:
    """Return the content of the file, {} if it is not what Skipstone writes; None if there is no file."""
    try:
        content = json.loads(storage.read(MARKER, _BYTES_MAX))
    except FileMissingError:
        return None
    except (CorruptionError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def without_index(storage: Storage, marker: dict[str, Any]) -> InvalidArgumentError:
    """Return the error for a folder that has the file, and no index."""
    index = marker.get("index")
    where = f" It was in {index}." if isinstance(index, str) else ""
    return InvalidArgumentError(
        f"{storage.uri}: Skipstone removed rows or files here, and files that contain them may still be in the folder. "
        f"Without the index they would count again.{where} Restore the index",
        hint="or pass {ignore_deletes}, and deleted rows return",
    )
