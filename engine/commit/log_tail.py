"""The tail of a log that has gone on since its table was indexed, laid over the version for one handle.

A handle on such a table pins a pair: our version, and a state of the log. What came and went between is bound to the
version just as a commit would bind it, but for the run of the manifest, which stays in memory, and for the indexes,
which do not cover it: files that came may match, files that went are gone. `sync` commits the same.
"""

from __future__ import annotations

import io
import uuid
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...arrays import from_numpy, to_numpy
from ...hfile_like import SortedFileWriter
from ..lakes.log import LogState
from ..state import Instant, Run, manifest
from ..state.run_writing import Form
from ..state.runs import RunReaders
from ..state.snapshot import Snapshot, Tail
from ..storage import Storage
from ..tasks.log_attach import opened
from .bind import bind
from .follow import Followed, followed


def with_tail(instant: Instant, readers: RunReaders, storage: Storage, state: LogState) -> Snapshot:
    """A version together with another state of its log."""
    found = followed(instant, readers, state)
    snapshot = _overlaid(instant, readers, storage, found)
    removed = len(found.removed) if found.instant.manifest else instant.totals["files"]
    snapshot.tail = Tail(state.position, state.version, found.added.num_rows, removed)
    return snapshot


def _overlaid(instant: Instant, readers: RunReaders, storage: Storage, found: Followed) -> Snapshot:
    results = opened(storage, found.added, found.naming)
    before = Snapshot(found.instant, readers)
    bound = bind(before, found.instant, results, found.removed, remember_gone=False, keys={})
    ids = np.concatenate([np.empty(0, dtype=np.uint64), *(files.ids for files in bound.added)]).tolist()
    manifest = found.instant.manifest
    if len(bound.manifest[0]):
        run, data = _in_memory(*bound.manifest, instant.version + 1)
        manifest, readers = (*manifest, run), readers.holding(run, data)
    indexes = []
    for index in bound.instant.indexes:
        holes = (*index.coverage.holes, *((number, number) for number in ids))
        indexes.append(replace(index, coverage=index.coverage.with_holes(holes)))
    return Snapshot(replace(bound.instant, version=instant.version, manifest=manifest, indexes=tuple(indexes)), readers)


def _in_memory(keys: pa.Array, rows: pa.Table, deleted: np.ndarray, segment: int) -> tuple[Run, bytes]:
    """A run of the manifest that lies nowhere: no other handle, and no process, knows its name."""
    order = pc.array_sort_indices(keys)
    keys, rows, deleted = keys.take(order), rows.take(order), deleted[to_numpy(order)]
    sink = io.BytesIO()
    form = Form(manifest.BLOCK_BYTES, manifest.SUMMARIES, cut_prefix_bytes=1)
    with SortedFileWriter(sink, schema=rows.schema, **form.options()) as writer:
        writer.write(keys, rows, from_numpy(deleted))
    data = sink.getvalue()
    ends = keys[0].as_py().hex(), keys[len(keys) - 1].as_py().hex()
    return Run(f"tail/{uuid.uuid4().hex}", len(data), len(keys), (segment, segment), *ends), data
