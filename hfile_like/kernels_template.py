"""Compiled twin of `templates.TemplateColumn._rendered`: the values of a template, character by character.

Only `skipstone.base.lazy` imports this module. Every position is an int64: uint64 with int64 is a *float64* in numba.
"""

from __future__ import annotations

import numpy as np

from ..base.compiling import jit_cached

_LITERAL, _PADDED, _PLAIN, _UUID = 0, 1, 2, 4  # as in `templates`


@jit_cached
def render(kinds, sizes, literals, numbers, fields, offsets, out):
    """Write the values to `out`, and where each begins and the last ends to `offsets`: int64 [n + 1].

    kinds, sizes    int64 [parts]
    literals        uint8: the bytes of all literals
    numbers         uint64 [numbers, n]
    fields          uint8 [n, bytes]: of all hexadecimal parts
    out             uint8: room for the longest values
    """
    place = 0
    for row in range(len(offsets) - 1):
        offsets[row] = place
        literal, number, field = 0, 0, 0
        for part in range(len(kinds)):
            kind, size = kinds[part], sizes[part]
            if kind == _LITERAL:
                for i in range(size):
                    out[place + i] = literals[literal + i]
                literal += size
                place += size
            elif kind in (_PADDED, _PLAIN):
                value = numbers[number, row]
                number += 1
                if kind == _PLAIN:
                    size, rest = 1, value // np.uint64(10)
                    while rest > np.uint64(0):
                        size, rest = size + 1, rest // np.uint64(10)
                for i in range(size - 1, -1, -1):
                    rest = value // np.uint64(10)
                    out[place + i] = np.uint8(value - rest * np.uint64(10)) + np.uint8(48)
                    value = rest
                place += size
            else:
                for i in range(size):
                    if kind == _UUID and (i == 4 or i == 6 or i == 8 or i == 10):
                        out[place] = np.uint8(45)
                        place += 1
                    byte = fields[row, field + i]
                    for digit in (byte >> np.uint8(4), byte & np.uint8(15)):
                        out[place] = digit + (np.uint8(48) if digit < 10 else np.uint8(87))
                        place += 1
                field += size
    offsets[len(offsets) - 1] = place
