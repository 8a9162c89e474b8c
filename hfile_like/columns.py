"""One column of several blocks as one array, by compiled code: a scan makes few calls for many blocks.

Where a section does not fit, is encoded in a way that is not for this, or where there is no compiler, nothing is given:
the plain path reads block by block, and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
import pyarrow as pa

from .codec import Encoded
from .keys import ENCODING_BUNDLE, ENCODING_FIXED, ENCODING_NUMBERS, joined_sections, render_bundles, render_wide
from .lazy import is_loaded, kernels_for
from .strings import is_large
from .values import ENCODING_FIXED as VALUES_FIXED
from .values import FLAG_VALIDITY, encoding_of, integer_dtype

# About what a block costs without compiled code: a few calls of numpy and Arrow, whatever it holds.
_PLAIN_NS = 20_000


def can_join_keys(encodings: set[int]) -> bool:
    """Whether `joined_keys` may give something: nothing has to be decompressed to know."""
    return is_loaded("keys") and (encodings == {ENCODING_BUNDLE} or encodings <= {ENCODING_FIXED, ENCODING_NUMBERS})


def can_join_columns(blocks: int) -> bool:
    """Whether `joined_column` may give something of so many blocks; tells `lazy` what the plain path will take."""
    return kernels_for("columns", _PLAIN_NS * blocks) is not None


def joined_keys(sections: Sequence[Encoded], counts: Sequence[int], cap: int) -> pa.BinaryArray | None:
    """The keys of blocks of so many entries, one after the other; None where it is not for this."""
    encodings = [section.encoding for section in sections]
    kinds, raws = set(encodings), [section.raw for section in sections]
    if kinds == {ENCODING_BUNDLE}:
        return render_bundles(raws, counts, cap)
    return render_wide(raws, counts, encodings, cap) if kinds <= {ENCODING_FIXED, ENCODING_NUMBERS} else None


def joined_column(kind: pa.DataType, sections: Sequence[Encoded], counts: Sequence[int], cap: int) -> pa.Array | None:
    """As `joined_keys`, of a value column. Strings are not checked for being text."""
    kernels = kernels_for("columns", _PLAIN_NS * len(sections))
    if kernels is None or any(section.flags & ~FLAG_VALIDITY for section in sections):
        return None
    blocks = (
        *joined_sections([section.raw for section in sections], counts),
        np.fromiter((section.encoding for section in sections), dtype=np.int64, count=len(sections)),
        np.fromiter((section.flags for section in sections), dtype=np.int64, count=len(sections)),
    )
    total = sum(counts)
    bits = np.zeros(total // 8 + 2, dtype=np.uint8)
    plain = encoding_of(kind)
    out: np.ndarray
    if plain == VALUES_FIXED:
        out = np.empty(total * kind.byte_width, dtype=np.uint8)
        is_integer = integer_dtype(kind) is not None
        nulls = kernels.fill_fixed(*blocks, kind.byte_width, is_integer, out, bits)
    elif pa.types.is_boolean(kind):
        out = np.zeros(total // 8 + 2, dtype=np.uint8)
        nulls = kernels.fill_bits(*blocks, out, bits)
    else:
        return _joined_strings(kernels, kind, blocks, total, cap, bits)
    if nulls < 0:
        return None
    return pa.Array.from_buffers(kind, total, [pa.py_buffer(bits) if nulls else None, pa.py_buffer(out)], nulls)


def _joined_strings(
    kernels: ModuleType, kind: pa.DataType, blocks: tuple, total: int, cap: int, bits: np.ndarray
) -> pa.Array | None:
    if is_large(kind):
        return None
    offsets = np.empty(total + 1, dtype=np.int32)
    nulls = kernels.measure_strings(*blocks, min(cap, np.iinfo(np.int32).max), offsets, bits)
    if nulls < 0:
        return None
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    kernels.fill_strings(*blocks, offsets, bits, out)
    validity = pa.py_buffer(bits) if nulls else None
    return pa.Array.from_buffers(kind, total, [validity, pa.py_buffer(offsets), pa.py_buffer(out)], nulls)
