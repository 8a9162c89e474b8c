"""The merged rows of file slices with logs, through the package `hudi` (hudi-rs).

Skipstone passes it the base and those logs of which every block is committed at the state, or is rolled back by a block
that it also passes. It refuses what the package would have to distinguish itself: blocks of writers in flight, custom
merges, and logs of an unknown format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from ....errors import NotReadableError
from ...state.manifest import BASE
from ...storage import Storage
from ...storage.places import is_uri
from ..table_format import check_location, first_line_of
from .log_blocks import COMMAND, LogBlock, log_blocks
from .timeline import HudiTimeline


class SliceReader:
    """Reads slices of one table at one state of its timeline."""

    def __init__(self, storage: Storage, options: Mapping[str, str], timeline: HudiTimeline):
        self._storage, self._options, self._timeline = storage, dict(options), timeline
        self._reader: Any = None

    def rows(self, files: pa.Table) -> pa.Table:
        """Return the rows of a slice from its files (path, kind, merge). Raises NotReadableError with its path."""
        rows = files.to_pylist()
        base = next((row["path"] for row in rows if row["kind"] == BASE), "")
        if base and not base.endswith(".parquet"):
            self._refuse(base, "a base of another format than Parquet")
        logs = self._logs([row for row in rows if row["kind"] != BASE])
        try:
            batch = self._opened(base or rows[0]["path"]).read_file_slice_from_paths(base, logs)
        except (NotReadableError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in its Rust part is not an Exception
            message, cause = first_line_of(self._storage, error)
            raise NotReadableError(
                f"{base or rows[0]['path']}: the package hudi cannot read its slice ({message}); Spark with Hudi can",
                paths=[row["path"] for row in rows],
            ) from cause
        return pa.Table.from_batches([batch])

    def _logs(self, rows: list[dict]) -> list[str]:
        blocks: dict[str, list[LogBlock]] = {}
        for row in rows:
            if row["merge"] not in (None, "whole"):
                self._refuse(row["path"], f"rows are merged in a way of the table's own ({row['merge']})")
            log = log_blocks(self._storage, row["path"], self._storage.stat(row["path"]).size_bytes)
            if log is None:
                self._refuse(row["path"], "a log that is not understood here")
            blocks[row["path"]] = log or []
        undone = {b.target for log in blocks.values() for b in log if b.kind == COMMAND}
        chosen = []
        for path, log in blocks.items():
            counts = [b.kind == COMMAND or self._timeline.is_committed(b.instant) for b in log]
            is_dead = [not count and b.instant not in undone for b, count in zip(log, counts, strict=True)]
            if any(is_dead) and any(counts):
                self._refuse(path, "a log with blocks of writers that are not done")
            if not any(is_dead):
                chosen.append(path)
        return sorted(chosen)

    def _refuse(self, path: str, what: str) -> None:
        raise NotReadableError(f"{path}: {what}; Spark with Hudi reads it", paths=[path])

    def _opened(self, path: str) -> Any:
        if self._reader is None:
            try:
                from hudi import HudiTable
            except ImportError as error:
                raise NotReadableError(
                    f"{path}: its slice is read by the package hudi, which is not installed: "
                    "pip install 'skipstone[hudi]'",
                    paths=[path],
                ) from error
            if is_uri(self._storage.uri):
                check_location(self._storage, "hudi")
            self._reader = HudiTable(self._storage.uri, self._options).create_file_group_reader_with_options()
        return self._reader
