"""Compiled twins of `page_rows.codes_plainly` and `texts_plainly`: dictionary codes, and texts, at some rows of a page;
of `coded_chunks.unpacked_plainly`, for counts of codes and rows of some; and of Snappy's decompression, as far as it is
asked for.

A page is not trusted: whatever its bytes say, nothing outside of it is read. Imported by `skipstone.lazy` alone.
"""

from __future__ import annotations

import numpy as np

from ...compiling import called, compiled, load32, load64, store64

_CODE_BITS_MAX = 32
ROOM_BYTES = 64  # behind what `unsnap` fills: pieces are copied by words


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


@compiled
def texts_at(values, places, bounds):
    """Fills int64 `bounds` [places, 2] with where the texts at `places` (int64, ascending) begin, with their lengths,
    and end: in uint8 `values` each follows its length. Returns whether they are there."""
    begin, done, size = np.int64(0), 0, len(values)
    for place in range(places[-1] + 1):
        if begin + 4 > size:
            return False
        end = begin + 4 + np.int64(load32(values, begin))
        if end > size:
            return False
        if place == places[done]:
            bounds[done, 0], bounds[done, 1] = begin, end
            done += 1
        begin = end
    return True


@compiled
def unsnap(stored, out, progress, target):
    """Decompresses uint8 `stored`, of Snappy, into uint8 `out` until at least `target` bytes of it are filled, or all
    of them but the last ROOM_BYTES. int64 `progress` says where in both to go on, and is moved; at first zeros. Returns
    False for bytes that are not Snappy's, or of another size. Format: github.com/google/snappy, format_description.txt.
    """
    size, room = len(stored), len(out) - ROOM_BYTES
    begin, end = progress[0], progress[1]
    if begin == 0:
        total, shift = np.int64(0), 0
        while True:
            if begin >= size or shift > 28:
                return False
            byte = np.int64(stored[begin])
            begin += 1
            total |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if total != room:
            return False
    while end < min(target, room):
        if begin >= size:
            return False
        tag = np.int64(stored[begin])
        kind, extra = tag & 3, np.int64(0)
        begin += 1
        if kind == 0:
            length = (tag >> 2) + 1
            extra = max(length - 60, np.int64(0))
        else:
            length = ((tag >> 2) & 7) + 4 if kind == 1 else (tag >> 2) + 1
            extra = np.int64(1) << (kind - 1)
        if begin + extra > size:
            return False
        number = np.int64(0)
        for k in range(extra):
            number |= np.int64(stored[begin + k]) << (8 * k)
        begin += extra
        if kind == 0:
            if extra:
                length = number + 1
            if begin + length > size or end + length > room:
                return False
            if begin + length + 8 <= size:
                for k in range(0, length, 8):
                    store64(out, end + k, load64(stored, begin + k))
            else:
                for k in range(length):
                    out[end + k] = stored[begin + k]
            begin += length
        else:
            distance = number | tag >> 5 << 8 if kind == 1 else number
            if distance == 0 or distance > end or end + length > room:
                return False
            if distance >= 8:
                for k in range(0, length, 8):
                    store64(out, end + k, load64(out, end - distance + k))
            else:
                for k in range(length):
                    out[end + k] = out[end - distance + k]
        end += length
    progress[0], progress[1] = begin, end
    return True


@called
def _run_at(data, offset, width, out):
    """Fills int64 `out` with what the run at data[offset] says: whether its codes are packed, how many they are, where
    they begin, where they end. Returns whether it is there."""
    size, head, shift = len(data), np.int64(0), 0
    while True:
        if offset >= size or shift > 28:
            return False
        byte = np.int64(data[offset])
        offset += 1
        head |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    count, is_packed = head >> 1, head & 1
    out[0], out[1], out[2] = is_packed, 8 * count if is_packed else count, offset
    out[3] = offset + (count * width if is_packed else (width + 7) >> 3)
    return count > 0 and out[3] <= size


@called
def _code_at(data, place, width):
    """The code of at most 24 bits that begins at bit `place`."""
    begin, code = place >> 3, np.int64(0)
    if begin + 4 <= len(data):
        code = np.int64(load32(data, begin))
    else:
        for k in range(min(len(data) - begin, 4)):
            code |= np.int64(data[begin + k]) << (8 * k)
    return code >> (place & 7) & ((np.int64(1) << width) - 1)


@compiled
def count_codes(data, width, count, counts):
    """Adds to int64 `counts` how often each of the first `count` codes of uint8 `data` comes: runs of codes of at most
    24 bits. Returns whether they are there, and none is beyond `counts`."""
    run, of_bytes = np.empty(4, dtype=np.int64), np.zeros(256, dtype=np.int64)
    offset, row = np.int64(0), np.int64(0)
    by_bytes = width == 1 or width == 2 or width == 4  # so that a byte is some whole codes
    while row < count:
        if not _run_at(data, offset, width, run):
            return False
        rows, begin = min(run[1], count - row), run[2]
        if not run[0]:
            code = _code_at(data, 8 * begin, width)
            if code >= len(counts):
                return False
            counts[code] += rows
        else:
            first = np.int64(0)
            if by_bytes:
                whole = rows * width >> 3
                for k in range(begin, begin + whole):
                    of_bytes[data[k]] += 1
                first = (whole << 3) // width
            for i in range(first, rows):
                code = _code_at(data, 8 * begin + i * width, width)
                if code >= len(counts):
                    return False
                counts[code] += 1
        row += rows
        offset = run[3]
    if by_bytes:
        for byte in range(256):
            if of_bytes[byte]:
                for place in range(0, 8, width):
                    code = byte >> place & ((1 << width) - 1)
                    if code >= len(counts):
                        return False
                    counts[code] += of_bytes[byte]
    return True


@compiled
def rows_of_codes(data, width, count, wanted, rows, codes):
    """Fills int64 `rows` and `codes` with the places, and the codes, of those of the first `count` codes of uint8
    `data` of which uint8 `wanted` is not 0. Returns how many; -1 where they are not there, or one is beyond `wanted`.
    """
    run = np.empty(4, dtype=np.int64)
    offset, row, found = np.int64(0), np.int64(0), 0
    while row < count:
        if not _run_at(data, offset, width, run):
            return -1
        of_run, begin = min(run[1], count - row), run[2]
        for i in range(of_run):
            code = _code_at(data, 8 * begin + (i * width if run[0] else 0), width)
            if code >= len(wanted):
                return -1
            if wanted[code]:
                rows[found], codes[found] = row + i, code
                found += 1
        row += of_run
        offset = run[3]
    return found
