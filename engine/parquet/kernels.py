"""Compiled twin of `page_rows.codes_plainly`: dictionary codes at some rows of a page.

A page is not trusted: whatever its bytes say, nothing outside of it is read. Imported by `skipstone.lazy` alone.
"""

from __future__ import annotations

import numpy as np

from ...compiling import compiled

_CODE_BITS_MAX = 32


@compiled
def codes_at(values, rows, codes):
    """Fills int64 `codes` with the codes at `rows` (int64, ascending): uint8 `values` are how many bits a code has,
    then runs of one code, or of packed ones. Returns whether they are there."""
    width, size = np.int64(values[0]) if len(values) else np.int64(99), len(values)
    if width > _CODE_BITS_MAX:
        return False
    done, row, offset = 0, np.int64(0), np.int64(1)
    while done < len(rows):
        head, shift = np.int64(0), 0
        while True:
            if offset >= size or shift > 35:
                return False
            byte = np.int64(values[offset])
            offset += 1
            head |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        count = head >> 1
        if not count:
            return False
        if head & 1:
            if count * width > size - offset:
                return False
            while done < len(rows) and rows[done] < row + 8 * count:
                place = 8 * offset + (rows[done] - row) * width
                code, bits, byte_place = np.int64(0), -(place & 7), place >> 3
                while bits < width:
                    byte = np.int64(values[byte_place])
                    code |= byte << bits if bits >= 0 else byte >> -bits
                    bits, byte_place = bits + 8, byte_place + 1
                codes[done] = code & ((np.int64(1) << width) - 1)
                done += 1
            offset += count * width
            row += 8 * count
        else:
            code = np.int64(0)
            for k in range((width + 7) >> 3):
                if offset >= size:
                    return False
                code |= np.int64(values[offset]) << (8 * k)
                offset += 1
            while done < len(rows) and rows[done] < row + count:
                codes[done] = code
                done += 1
            row += count
    return True
