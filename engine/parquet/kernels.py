"""Compiled twins of what `page_headers.py`, `page_rows.py` and `coded_chunks.py` do in plain Python: headers of pages,
values at some rows, counts of dictionary codes, the rows of some. Each goes through a whole column chunk, of pages that
are compressed by Snappy or not at all.

A page is not trusted: whatever its bytes say, nothing outside of it is read. Imported by `skipstone.lazy` alone.
"""

from __future__ import annotations

import numpy as np

from ...compiling import called, compiled, load16, load32, load64, store64

_CODE_BITS_MAX = 24
ROOM_BYTES = 64  # behind what `_unsnapped` fills: pieces are copied by words
_DICTIONARY_PAGE, _DATA_PAGE_V2, _RLE = 2, 3, 3
_KIND, _COUNT, _ENCODING, _LEVELS_ENCODING, _LEVELS_BYTES, _IS_COMPRESSED, _SIZE, _CHECKSUM, _HEAD, _BEGIN, _END = (
    range(11)
)
_DEPTH_MAX = 4


# -- headers -----------------------------------------------------------------------------------------------------------


@called
def _varint_at(data, offset, end, out):
    """Puts the unsigned number at data[offset] into out[0]; returns where it ends, -1 for one that does not."""
    value, shift = np.int64(0), 0
    while offset < end and shift <= 56:
        byte = np.int64(data[offset])
        offset += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            out[0] = value
            return offset
    return np.int64(-1)


@compiled
def headers_in(data, offset, row_count, headers):
    """Fills int64 `headers` with those of the pages of uint8 `data` from an offset on, a `PageHeader` each, until they
    hold so many rows, or the array is full. Returns how many; it ends before one that only the plain twin may know."""
    found, size = 0, len(data)
    value, outer = np.zeros(1, dtype=np.int64), np.zeros(_DEPTH_MAX, dtype=np.int64)
    of_depth, absent = np.empty((2, 16), dtype=np.int64), np.int64(-1) << 62
    while row_count > 0 and found < len(headers):
        begin, depth, number, has_own = offset, 0, np.int64(0), False
        of_depth[:] = absent
        while True:
            if offset >= size:
                return found
            head = np.int64(data[offset])
            offset += 1
            if head == 0:
                if depth == 0:
                    break
                depth -= 1
                number = outer[depth]
                continue
            number += head >> 4
            kind = head & 15
            if head < 16 or number > 15:
                return found
            if kind == 12:
                is_own = number == 5 or number == 7 or number == 8
                if depth + 1 >= _DEPTH_MAX or (depth == 0 and (has_own or not is_own)):
                    return found
                has_own = True
                outer[depth] = number
                depth, number = depth + 1, np.int64(0)
            elif kind <= 2:
                if depth < 2:
                    of_depth[depth, number] = kind == 1
            elif kind <= 6 or kind == 8:
                if kind == 3:
                    return found
                offset = _varint_at(data, offset, size, value)
                if offset < 0 or (kind == 8 and value[0] > size - offset):
                    return found
                if kind == 8:
                    offset += value[0]
                elif kind == 5 and depth < 2:
                    of_depth[depth, number] = (value[0] >> 1) ^ -(value[0] & 1)
            else:
                return found
        top, own, header = of_depth[0], of_depth[1], headers[found]
        kind, levels_bytes, encoding = top[1], np.int64(-1), own[2]
        if min(top[2], top[3], own[1]) < 0:
            return found
        header[_LEVELS_ENCODING], header[_IS_COMPRESSED] = -1 if own[3] == absent else own[3], 1
        if kind == _DATA_PAGE_V2:
            levels_bytes, encoding = own[5], own[4]
            if own[6] != 0 or not 0 <= levels_bytes <= min(top[2], top[3]):
                return found
            header[_LEVELS_ENCODING], header[_IS_COMPRESSED] = _RLE, own[7] != 0
        elif kind != 0 and kind != _DICTIONARY_PAGE:
            return found
        if encoding == absent:
            return found
        header[_KIND], header[_COUNT], header[_ENCODING], header[_LEVELS_BYTES] = kind, own[1], encoding, levels_bytes
        header[_SIZE], header[_CHECKSUM] = top[2], -1 if top[4] == absent else top[4] & 0xFFFFFFFF
        header[_HEAD], header[_BEGIN], header[_END] = begin, offset, offset + top[3]
        if kind != _DICTIONARY_PAGE:
            row_count -= own[1]
        offset += top[3]
        found += 1
    return found


@compiled
def are_whole(data, chunks, headers):
    """Twin of `page_headers.are_whole`, of uint8 `data`; False too for headers that only the plain twin may know.
    `headers`: room for some."""
    for i in range(len(chunks)):
        chunk, row_count, offset = data[chunks[i, 0] : chunks[i, 1]], chunks[i, 2], np.int64(0)
        while row_count > 0:
            found = headers_in(chunk, offset, row_count, headers)
            if found == 0:
                return False
            for header in headers[:found]:
                if header[_END] > len(chunk):
                    return False
                if header[_KIND] != _DICTIONARY_PAGE:
                    row_count -= header[_COUNT]
                elif header[_COUNT] > header[_SIZE]:
                    return False
            offset = headers[found - 1, _END]
        if row_count < 0:
            return False
    return True


# -- Snappy ------------------------------------------------------------------------------------------------------------


@called
def _unsnapped(data, size, out, room, progress, target):
    """Decompresses Snappy's bytes, uint8 `data` up to `size`, into uint8 `out` until at least `target` bytes of it are
    filled, or all `room`, behind which are ROOM_BYTES. int64 `progress` says where in both to go on, and is moved.
    Returns False for bytes that are not Snappy's, or of another size.
    Format: github.com/google/snappy, format_description.txt.
    """
    begin, end = progress[0], progress[1]
    if min(target, room) > 0 and end == 0:  # the size is said first
        begin = _varint_at(data, begin, size, progress)
        if begin < 0 or progress[0] != room:
            return False
    while end < min(target, room):
        if begin >= size:
            return False
        tag = np.int64(data[begin])
        kind = tag & 3
        begin += 1
        if kind == 0:
            length = (tag >> 2) + 1
            if length > 60:
                extra = length - 60
                if begin + extra > size:
                    return False
                length = np.int64(1)
                for k in range(extra):
                    length += np.int64(data[begin + k]) << (8 * k)
                begin += extra
            if begin + length > size or end + length > room:
                return False
            if begin + length + 8 <= size:
                store64(out, end, load64(data, begin))
                for k in range(8, length, 8):
                    store64(out, end + k, load64(data, begin + k))
            else:
                for k in range(length):
                    out[end + k] = data[begin + k]
            begin += length
        else:
            if begin + 4 > size and begin + (kind if kind < 3 else 4) > size:
                return False
            if kind == 1:
                length, distance = ((tag >> 2) & 7) + 4, np.int64(data[begin]) | tag >> 5 << 8
                begin += 1
            elif kind == 2:
                length, distance = (tag >> 2) + 1, np.int64(load16(data, begin))
                begin += 2
            else:
                length, distance = (tag >> 2) + 1, np.int64(load32(data, begin))
                begin += 4
            if distance == 0 or distance > end or end + length > room:
                return False
            if distance >= 8:
                store64(out, end, load64(out, end - distance))
                for k in range(8, length, 8):
                    store64(out, end + k, load64(out, end - distance + k))
            else:
                for k in range(length):
                    out[end + k] = out[end - distance + k]
        end += length
    progress[0], progress[1] = begin, end
    return True


@compiled
def unsnap(data, out, progress, target):
    """`_unsnapped`, of all of `data` into all of `out` but the last ROOM_BYTES: as a test calls it."""
    return _unsnapped(data, np.int64(len(data)), out, np.int64(len(out) - ROOM_BYTES), progress, target)


@called
def _copy(data, begin, out, to, size):
    for k in range(size):
        out[to + k] = data[begin + k]


@called
def _is_plain(header, is_snappy):
    """Whether what follows a page's header is its body."""
    return not is_snappy or header[_IS_COMPRESSED] == 0 or header[_SIZE] == max(header[_LEVELS_BYTES], np.int64(0))


@called
def _is_opened(data, header, is_snappy, out, progress):
    """Fills uint8 `out` with a page's body, but levels that are not compressed. False where it is of another size."""
    begin = header[_BEGIN] + max(header[_LEVELS_BYTES], np.int64(0))
    size = header[_SIZE] - max(header[_LEVELS_BYTES], np.int64(0))
    if _is_plain(header, is_snappy):
        if header[_END] - begin != size:
            return False
        _copy(data, begin, out, np.int64(0), size)
        return True
    progress[0], progress[1] = begin, 0
    return _unsnapped(data, header[_END], out, size, progress, size)


# -- codes -------------------------------------------------------------------------------------------------------------


@called
def _run_at(data, offset, end, width, run):
    """Fills int64 `run` with what the run at data[offset] says: whether its codes are packed, how many they are, where
    they begin, where they end. Returns whether it is there."""
    begin = _varint_at(data, offset, end, run)
    if begin < 0 or run[0] >= np.int64(1) << 35:
        return False
    count, is_packed = run[0] >> 1, run[0] & 1
    run[0], run[1], run[2] = is_packed, 8 * count if is_packed else count, begin
    run[3] = begin + (count * width if is_packed else (width + 7) >> 3)
    return count > 0 and run[3] <= end


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


@called
def _counted(data, offset, end, width, count, counts, of_bytes, run):
    """Adds to `counts` how often each of the first `count` codes comes. Returns whether they are there, and none is
    beyond `counts`. For its own use: int64 `of_bytes` [256] and `run` [4]."""
    for byte in range(256):
        of_bytes[byte] = 0
    row = np.int64(0)
    by_bytes = width == 1 or width == 2 or width == 4  # so that a byte is some whole codes
    while row < count:
        if not _run_at(data, offset, end, width, run):
            return False
        rows, first, begin = min(run[1], count - row), np.int64(0), run[2]
        if not run[0]:
            code = _code_at(data, 8 * begin, width)
            if code >= len(counts):
                return False
            counts[code] += rows
        else:
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


@called
def _valid_in(data, header, body, begin, may_be_null, of_levels, of_bytes, run, bounds):
    """How many rows of a data page are not null; -1 where that is not known. Its body, as `_is_opened` makes it, begins
    at body[begin]; int64 `bounds` is filled with where its values begin and end there."""
    levels_bytes, count = header[_LEVELS_BYTES], header[_COUNT]
    bounds[0], bounds[1] = begin, begin + header[_SIZE] - max(levels_bytes, np.int64(0))
    if not may_be_null:
        return np.int64(-1) if levels_bytes > 0 else count
    of_levels[0], of_levels[1] = 0, 0
    if levels_bytes >= 0:
        first = header[_BEGIN]
        is_known = _counted(data, first, first + levels_bytes, np.int64(1), count, of_levels, of_bytes, run)
    else:
        if header[_LEVELS_ENCODING] != _RLE or bounds[1] - begin < 4:
            return np.int64(-1)
        bounds[0] = begin + 4 + np.int64(load32(body, begin))
        if bounds[0] > bounds[1]:
            return np.int64(-1)
        is_known = _counted(body, begin + 4, bounds[0], np.int64(1), count, of_levels, of_bytes, run)
    return of_levels[1] if is_known else np.int64(-1)


@called
def _largest(headers, first):
    largest = np.int64(0)
    for i in range(first, len(headers)):
        largest = max(largest, headers[i, _SIZE])
    return largest


@called
def _is_coded(header):
    return header[_ENCODING] == 2 or header[_ENCODING] == 8


@compiled
def count_codes(data, headers, is_snappy, may_be_null, counts):
    """Adds to int64 `counts` how often each code comes in the data pages of a chunk, uint8 `data` and int64 `headers`,
    of which the first is the dictionary's. Returns how many rows are not null; -1 where it is not as described, or a
    code is beyond `counts`."""
    body, of_bytes = np.empty(_largest(headers, 1) + ROOM_BYTES, dtype=np.uint8), np.empty(256, dtype=np.int64)
    numbers, run, total = np.empty(6, dtype=np.int64), np.empty(4, dtype=np.int64), np.int64(0)
    for i in range(1, len(headers)):
        header, bounds = headers[i], numbers[:2]
        if not _is_opened(data, header, is_snappy, body, numbers[2:4]):
            return np.int64(-1)
        valid = _valid_in(data, header, body, np.int64(0), may_be_null, numbers[4:6], of_bytes, run, bounds)
        if valid < 0:
            return valid
        if valid:
            width = np.int64(body[bounds[0]]) if bounds[0] < bounds[1] else np.int64(99)
            if width > _CODE_BITS_MAX or not _counted(
                body, bounds[0] + 1, bounds[1], width, valid, counts, of_bytes, run
            ):
                return np.int64(-1)
        total += valid
    return total


@compiled
def rows_of_codes(data, headers, is_snappy, may_be_null, wanted, rows, codes):
    """Fills int64 `rows` and `codes` with the places, and the codes, of those rows of which uint8 `wanted`, by code, is
    not 0. Returns how many; -1 as `count_codes`, or where a row is null."""
    body, of_bytes = np.empty(_largest(headers, 1) + ROOM_BYTES, dtype=np.uint8), np.empty(256, dtype=np.int64)
    numbers, run, first, found = np.empty(6, dtype=np.int64), np.empty(4, dtype=np.int64), np.int64(0), np.int64(0)
    for i in range(1, len(headers)):
        header, bounds, row = headers[i], numbers[:2], np.int64(0)
        if not _is_opened(data, header, is_snappy, body, numbers[2:4]):
            return np.int64(-1)
        count = _valid_in(data, header, body, np.int64(0), may_be_null, numbers[4:6], of_bytes, run, bounds)
        if count != header[_COUNT]:
            return np.int64(-1)
        width, offset = np.int64(body[bounds[0]]) if bounds[0] < bounds[1] else np.int64(99), bounds[0] + 1
        while row < count:
            if width > _CODE_BITS_MAX or not _run_at(body, offset, bounds[1], width, run):
                return np.int64(-1)
            of_run, place, step = min(run[1], count - row), 8 * run[2], width if run[0] else np.int64(0)
            for k in range(of_run):
                code = _code_at(body, place + k * step, width)
                if code >= len(wanted):
                    return np.int64(-1)
                if wanted[code]:
                    rows[found], codes[found] = first + row + k, code
                    found += 1
            row += of_run
            offset = run[3]
        first += count
    return found


# -- values at some rows -----------------------------------------------------------------------------------------------


@called
def _codes_at(body, bounds, rows, first, run, codes):
    """Fills `codes` with those at `rows`, less `first`, of a page. Returns whether they are there."""
    width = np.int64(body[bounds[0]]) if bounds[0] < bounds[1] else np.int64(99)
    done, row, offset = 0, first, bounds[0] + 1
    while done < len(rows):
        if width > _CODE_BITS_MAX or not _run_at(body, offset, bounds[1], width, run):
            return False
        while done < len(rows) and rows[done] < row + run[1]:
            codes[done] = _code_at(body, 8 * run[2] + (rows[done] - row if run[0] else 0) * width, width)
            done += 1
        row += run[1]
        offset = run[3]
    return True


@called
def _texts_from(body, base, size, begins, place, last):
    """Fills int32 begins[place + 1 : last + 2] with where each text, behind its length, ends, counted from body[base];
    returns before which it stopped, since it goes beyond `size`."""
    begin = np.int64(begins[place])
    while place <= last:
        if begin + 4 > size:
            return place
        begin += 4 + np.int64(load32(body, base + begin))
        if begin > size:
            return place
        place += 1
        begins[place] = begin
    return place


@called
def _plain_values(body, bounds, header, first, width, rows, places, sizes):
    """Fills `places` and `sizes` with where the values at `rows`, less `first`, of a page of plain ones lie in uint8
    `body`, and their bytes. Returns the sum of these; -1 where the values are not there."""
    if width and bounds[1] - bounds[0] != header[_COUNT] * width:
        return np.int64(-1)
    row, begin, size, total = first, bounds[0], np.int64(width), np.int64(0)
    for k in range(len(rows)):
        if width:
            begin = bounds[0] + (rows[k] - first) * width
        else:
            while True:
                if begin + 4 > bounds[1]:
                    return np.int64(-1)
                size = 4 + np.int64(load32(body, begin))
                if begin + size > bounds[1]:
                    return np.int64(-1)
                if row == rows[k]:
                    break
                begin += size
                row += 1
        places[k], sizes[k] = begin, size
        total += size
    return total


@called
def _page_values(data, header, body, begin, may_be_null, has_dictionary, first, width, rows, codes, sizes, numbers):
    """Of a page whose body begins at body[begin], fills `codes` with those at `rows` and returns 0; or with their
    places, and does and returns what `_plain_values` does."""
    bounds, run, of_bytes = numbers[:2], numbers[6:10], numbers[10:]
    if _valid_in(data, header, body, begin, may_be_null, numbers[4:6], of_bytes, run, bounds) != header[_COUNT]:
        return np.int64(-1)
    if _is_coded(header) and has_dictionary:
        return np.int64(0) if _codes_at(body, bounds, rows, first, run, codes) else np.int64(-1)
    if header[_ENCODING] != 0:
        return np.int64(-1)
    return _plain_values(body, bounds, header, first, width, rows, codes, sizes)


@called
def _held(body, places, sizes, held, held_bytes):
    """Copies values from their places behind what uint8 `held` holds; `places` then say that they have no codes."""
    for k in range(len(places)):
        _copy(body, places[k], held, held_bytes, sizes[k])
        held_bytes += sizes[k]
        places[k] = -1


@called
def _in_order(values, base, of_code, width, codes, held, begins, out):
    """Fills uint8 `out` with the values of codes, from values[base] on, and of rows that have none with those that
    `held` holds."""
    from_held = np.int64(0)
    for k in range(len(codes)):
        size, code = begins[k + 1] - begins[k], codes[k]
        if code >= 0:
            begin = base + (code * width if width else np.int64(of_code[code]))
            _copy(values, begin, out, begins[k], size)
        else:
            _copy(held, from_held, out, begins[k], size)
            from_held += size


@compiled
def values_at(data, headers, starts, is_snappy, may_be_null, width, rows):
    """(int64 [rows + 1]: where each value begins, uint8: the values at `rows`, int64, ascending), each of `width`
    bytes, or, where that is 0, a text behind its length.

    data, headers    the pages of a chunk that hold these rows
    starts           int64 [pages]: the first row of each; -1 of a dictionary, which is the first

    Without rows where something is not known: a row is null, an encoding is another, bytes do not add up. What is not
    compressed is read where it lies: copying a page takes longer than finding a few of its values.
    """
    none = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint8)
    count, pages, done = len(rows), len(headers), 0
    codes, begins = np.full(count, -1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    numbers, body = np.empty(10 + 256, dtype=np.int64), np.empty(0, dtype=np.uint8)
    held, held_bytes = np.empty(256, dtype=np.uint8), np.int64(0)  # values that lie in the pages
    has_dictionary = headers[0, _KIND] == _DICTIONARY_PAGE
    for i in range(1 if has_dictionary else 0, pages):
        header, first, end = headers[i], starts[i], done
        while end < count and rows[end] < first + header[_COUNT]:
            end += 1
        of_page, of_codes, sizes = rows[done:end], codes[done:end], begins[done + 1 : end + 1]
        is_plain, levels_bytes, zero = (
            _is_plain(header, is_snappy),
            max(header[_LEVELS_BYTES], np.int64(0)),
            np.int64(0),
        )
        if is_plain:
            begin = header[_BEGIN] + levels_bytes
            if header[_END] - begin != header[_SIZE] - levels_bytes:
                return none
            size = _page_values(
                data, header, data, begin, may_be_null, has_dictionary, first, width, of_page, of_codes, sizes, numbers
            )
        else:
            if not len(body):
                body = np.empty(_largest(headers, 1 if has_dictionary else 0) + ROOM_BYTES, dtype=np.uint8)
            if not _is_opened(data, header, is_snappy, body, numbers[2:4]):
                return none
            size = _page_values(
                data, header, body, zero, may_be_null, has_dictionary, first, width, of_page, of_codes, sizes, numbers
            )
        if size < 0:
            return none
        if size:
            if held_bytes + size > len(held):
                larger = np.empty(2 * (held_bytes + size), dtype=np.uint8)
                larger[:held_bytes] = held[:held_bytes]
                held = larger
            if is_plain:
                _held(data, of_codes, sizes, held, held_bytes)
            else:
                _held(body, of_codes, sizes, held, held_bytes)
            held_bytes += size
        done = end
    if done < count:
        return none
    last, of_code, header = np.int64(-1), np.zeros(1, dtype=np.int32), headers[0]
    for k in range(count):
        last = max(last, codes[k])
    size, begin, is_plain, values = header[_SIZE], header[_BEGIN], True, np.empty(0, dtype=np.uint8)
    if last >= 0:
        is_plain = _is_plain(header, is_snappy)
        if last >= header[_COUNT] or (width and size != header[_COUNT] * width):
            return none
        if is_plain and header[_END] - begin != size:
            return none
        if not width:
            of_code = np.zeros(last + 2, dtype=np.int32)
            if is_plain and _texts_from(data, begin, size, of_code, np.int64(0), last) <= last:
                return none
    if not is_plain:
        values, progress, place = np.empty(size + ROOM_BYTES, dtype=np.uint8), numbers[:2], np.int64(0)
        progress[0], progress[1] = begin, 0
        target = (last + 1) * width if width else size * (last + 1) // header[_COUNT] + (size >> 6)
        while place <= last:
            if not _unsnapped(data, header[_END], values, size, progress, min(target, size)):
                return none
            place = last + 1 if width else _texts_from(values, np.int64(0), progress[1], of_code, place, last)
            if place <= last and progress[1] >= size:
                return none
            target = progress[1] + (size >> 4) + 1
    for k in range(count):
        if codes[k] >= 0:
            begins[k + 1] = width if width else of_code[codes[k] + 1] - of_code[codes[k]]
        begins[k + 1] += begins[k]
    out = np.empty(begins[count], dtype=np.uint8)
    if is_plain:
        _in_order(data, begin, of_code, width, codes, held, begins, out)
    else:
        _in_order(values, np.int64(0), of_code, width, codes, held, begins, out)
    return begins, out
