"""Keys of one block or of many as one column, by compiled code: see `template_columns`, which does it for templates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..arrays import binary_rows, offsets_and_data, offsets_of
from .lazy import kernels_for, read_only

BYTES_MAX = np.iinfo(np.int32).max
# About what a key costs without compiled code.
_BUNDLED_PLAIN_NS = 60
_BUNDLING_PLAIN_NS = 170
_WIDE_PLAIN_NS = 10


def render_bundles(sections: Sequence[memoryview | bytes], counts: Sequence[int], cap: int) -> pa.BinaryArray | None:
    """The keys of blocks in bundles, as `template_columns.render_templates`."""
    total = sum(counts)
    kernels = kernels_for("keys", _BUNDLED_PLAIN_NS * total)
    if kernels is None or not total:
        return None
    raw, begins, ends, sizes = joined_sections(sections, counts)
    offsets = np.empty(total + 1, dtype=np.int32)
    if not kernels.measure_bundles(raw, begins, ends, sizes, min(cap, BYTES_MAX), offsets):
        return None
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    kernels.render_bundles(raw, begins, sizes, offsets, out)
    return pa.Array.from_buffers(pa.binary(), total, [None, pa.py_buffer(offsets), pa.py_buffer(out)], 0)


def render_wide(
    sections: Sequence[memoryview | bytes], counts: Sequence[int], encodings: Sequence[int], cap: int
) -> pa.BinaryArray | None:
    """The keys of blocks of transposed keys (encoding 1) or of numbers (3), all of one width, as
    `template_columns.render_templates`."""
    total, width = sum(counts), int.from_bytes(sections[0][:4], "little")
    kernels = kernels_for("keys", _WIDE_PLAIN_NS * total)
    if kernels is None or not 0 < width * total <= min(cap, BYTES_MAX):
        return None
    out = np.empty((total, width), dtype=np.uint8)
    blocks = *joined_sections(sections, counts), np.array(encodings, dtype=np.int64)
    return binary_rows(out) if kernels.render_wide(*blocks, width, out.reshape(-1)) else None


def encode_bundles(keys: pa.BinaryArray) -> bytes | None:
    """Keys, ascending and at least one, in bundles of a common prefix; None where the plain twin is the better
    choice."""
    kernels = kernels_for("keys", _BUNDLING_PLAIN_NS * len(keys))
    if kernels is None:
        return None
    offsets, data = offsets_and_data(keys)
    window = offsets.view()
    window.flags.writeable = False
    bundles = len(keys) // 16 + 1
    out = np.empty(32 + 4 * bundles + 4 * len(keys) + int(offsets[-1]) - int(offsets[0]), dtype=np.uint8)
    size = kernels.encode_bundles(read_only(data), window, np.empty(bundles, dtype=np.int64), out)
    return out[:size].tobytes()


def joined_sections(
    sections: Sequence[memoryview | bytes], counts: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Sections one after the other, uint8 [bytes], where each begins and ends, and their counts, int64."""
    raw = read_only(sections[0] if len(sections) == 1 else b"".join(sections))
    ends = offsets_of(np.fromiter(map(len, sections), dtype=np.int64, count=len(sections)))
    return raw, ends[:-1], ends[1:], np.fromiter(counts, dtype=np.int64, count=len(sections))
