"""Templates of one block or of many as the offsets and bytes of one column, by compiled code.

A scan makes a column of many blocks in two calls. Where a section does not fit, or there is no compiler, nothing is
given: the plain path reads block by block, and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from .key_columns import BYTES_MAX, joined_sections
from .lazy import kernels_for
from .strings import is_large, is_text

# About what a value costs without compiled code.
_PLAIN_NS = 500


def render_templates(
    kind: pa.DataType, sections: Sequence[memoryview | bytes], counts: Sequence[int], cap: int
) -> pa.Array | None:
    """The values of blocks whose sections of templates are `sections` and hold `counts` values, none of them null, one
    after the other. `kind`: of strings or bytes. None where they do not fit, take more than `cap` bytes, or the plain
    twin is the better choice."""
    total = sum(counts)
    kernels = kernels_for("templates", _PLAIN_NS * total)
    if kernels is None or not total:
        return None
    raw, begins, ends, sizes = joined_sections(sections, counts)
    offsets: np.ndarray = np.empty(total + 1, dtype=np.int64 if is_large(kind) else np.int32)
    cap = cap if is_large(kind) else min(cap, BYTES_MAX)
    if not kernels.measure(raw, begins, ends, sizes, cap, is_text(kind), offsets):
        return None
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    kernels.render(raw, begins, ends, sizes, offsets, out)
    return pa.Array.from_buffers(kind, total, [None, pa.py_buffer(offsets), pa.py_buffer(out)], 0)
