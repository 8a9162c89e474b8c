"""What a save asks for, as the options of a data source.

    path                      the table's directory; where nothing is, a table is made
    partitioning              of a table that is made: its partition columns, "year,month"
    key                       makes a retry of the same save commit once
    partitionOverwriteMode    of mode("overwrite"): "static" (every file goes) or "dynamic" (those of the partitions
                              that get rows); where absent, what the session says (spark.sql.sources.*)
    readVersion               of mode("overwrite"): the version that the rows were read from; what others changed since
                              in the partitions that are overwritten is a conflict. Written by `save`
    row_group_rows, row_group_bytes, file_rows, file_bytes    as `Transaction.task_spec`; bytes may be told as 64m, 1g
    index_path, storage.*     as in a load

Any other option is refused: a `partition_by` that nobody reads would leave a table without partitions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..engine.storage_options import StorageOptions
from ..errors import InvalidArgumentError
from .request import STORAGE_PREFIX, local_path, number, storage_options_in, unknown_options

OVERWRITE_MODE, READ_VERSION = "partitionOverwriteMode", "readVersion"
_SIZES = ("row_group_rows", "row_group_bytes", "file_rows", "file_bytes")
_KNOWN = ("path", "partitioning", "key", OVERWRITE_MODE, READ_VERSION, *_SIZES, "index_path")
_BYTES = re.compile(r"([0-9]+)\s*([kmg])?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class WriteRequest:
    """One save. `partitioning` is None where nothing is said of it, and `is_dynamic` where the session decides."""

    path: str
    partitioning: tuple[str, ...] | None = None
    key: str | None = None
    is_dynamic: bool | None = None
    read_version: int | None = None
    index_path: str | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    storage_options: StorageOptions = field(default_factory=StorageOptions)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> WriteRequest:
        """The save that options mean. Raises InvalidArgumentError for one that is unknown, missing or malformed."""
        given = {name.lower(): value for name, value in options.items()}
        unknown = unknown_options(given, _KNOWN)
        if unknown:
            raise InvalidArgumentError(
                f"option {unknown[0]!r} is not known where the data source skipstone writes; it takes "
                f"{', '.join(_KNOWN)}, {STORAGE_PREFIX}*"
            )
        if not given.get("path"):
            raise InvalidArgumentError(
                'the data source skipstone writes to a directory: .save("path/of/the/table"); to a table of Spark\'s '
                "catalog it cannot, since Spark does not tell it where that lies"
            )
        return cls(
            path=local_path(given["path"]),
            partitioning=_names(given.get("partitioning")),
            key=given.get("key"),
            is_dynamic=_mode(given.get(OVERWRITE_MODE.lower())),
            read_version=number(READ_VERSION, given.get(READ_VERSION.lower())),
            index_path=local_path(given["index_path"]) if "index_path" in given else None,
            sizes={name: _size(name, given[name]) for name in _SIZES if name in given},
            storage_options=storage_options_in(given),
        )


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _mode(text: str | None) -> bool | None:
    if text is not None and text.lower() not in ("static", "dynamic"):
        raise InvalidArgumentError(f"option {OVERWRITE_MODE} is static or dynamic, not {text!r}")
    return None if text is None else text.lower() == "dynamic"


def _size(name: str, text: str) -> int:
    found = _BYTES.fullmatch(text.strip()) if text.isascii() else None
    if found is None or (found[2] and not name.endswith("_bytes")) or int(found[1]) < 1:
        unit = ", with k, m or g after it if you like" if name.endswith("_bytes") else ""
        raise InvalidArgumentError(f"option {name} is a whole number from 1 on{unit}, not {text!r}")
    return int(found[1]) * _UNITS[(found[2] or "").lower()]
