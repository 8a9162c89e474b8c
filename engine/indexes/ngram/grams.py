"""The n-grams of a text, and the bucket of each.

A gram is a sequence of UTF-8 bytes. Its start and length depend only on these. So a value has all grams of each text in
it:

    the first byte is 0x80 to 0xBF                        none: it is within a character
    the first byte is 0xC0 to 0xFF                        6 bytes: two characters of CJK, three of Cyrillic
    5 hexadecimal digits, of which one is 0 to 9          6 bytes: 5 of an id or a number are in most blocks
    other bytes                                           5 bytes

Grams are hashed into 65,536 buckets, so that texts of any kind take a bounded number of bytes per block.

An index that ignores case contains the grams of folded texts. A folded text has small ASCII letters, and i, s and k in
place of the only other characters that DuckDB's lower() or RE2's (?i) treat as equal to an ASCII letter. Other letters
are unchanged, so a text to look up in any case is cut at each of them.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....base.arrays import offsets_and_data, read_only
from ....base.lazy import kernels_for
from ...predicates.required_texts import Text

VERSION = 1  # of the rules above: an index of another version is rebuilt
BUCKETS = 1 << 16
BLOCK_BYTES = BUCKETS // 8  # one bit per bucket
MULTIPLIER = 0x9E3779B97F4A7C15
SHORT, LONG = 5, 6  # bytes of a gram
HEX, DIGIT, INNER, LEAD = 1, 2, 4, 8
CLASSES = np.zeros(256, dtype=np.uint8)  # of each byte
CLASSES[list(b"0123456789abcdefABCDEF")] |= HEX
CLASSES[list(b"0123456789")] |= DIGIT
CLASSES[0x80:0xC0] |= INNER
CLASSES[0xC0:] |= LEAD
CLASSES.setflags(write=False)

_LOWER = np.arange(256, dtype=np.uint8)
_LOWER[ord("A") : ord("Z") + 1] += ord("a") - ord("A")
_AS_ASCII = {"\u0130": "i", "\u017f": "s", "\u212a": "k"}
# Characters with another case, or that may get one: all but ASCII, kana, Hangul and CJK ideographs.
_CASED = re.compile("[^\0-\x7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3]+")
_AT_ONCE_BYTES = 1 << 18
_PLAIN_BYTE_NS = 60
_TEXT_GRAMS_MAX = 16  # of a text: more exclude little


def grams_of(text: Text, ignore_case: bool) -> tuple[int, ...]:
    """Return buckets that are set in each block with a value that contains the text. There are none if the text is too
    short, or if it matches in any case and the index distinguishes cases."""
    if text.any_case and not ignore_case:
        return ()
    plain = text.text
    if ignore_case:
        for character, letter in _AS_ASCII.items():
            plain = plain.replace(character, letter)
    found: dict[int, None] = {}
    for piece in _CASED.split(plain) if text.any_case else [plain]:
        data = np.frombuffer(piece.encode("utf-8", "surrogatepass"), dtype=np.uint8)
        data = _LOWER[data] if ignore_case else data
        is_gram, buckets = _buckets(data, np.full(len(data), len(data)))
        found.update(dict.fromkeys(buckets[is_gram].tolist()))
    buckets_found = list(found)
    spread = np.linspace(0, len(found) - 1, min(len(found), _TEXT_GRAMS_MAX)).astype(int)
    return tuple(buckets_found[place] for place in spread.tolist())


def as_bytes(values: pa.Array, ignore_case: bool) -> pa.LargeBinaryArray:
    """Return texts in the form that an index reads; `mark_grams` converts ASCII letters to small ones."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_string_view(values.type):
        values = values.cast(pa.large_string())
    values = values.cast(pa.large_binary())
    if ignore_case and len(values) and _bytes_of(values).max(initial=0) >= 0x80:
        for character, letter in _AS_ASCII.items():
            values = pc.replace_substring(values, pattern=character.encode(), replacement=letter.encode())
    return values


def _bytes_of(values: pa.LargeBinaryArray) -> np.ndarray:
    offsets, buffer = offsets_and_data(values)
    return np.frombuffer(buffer, dtype=np.uint8)[int(offsets[0]) : int(offsets[-1])]


def mark_grams(
    values: pa.LargeBinaryArray, first_row: int, block_rows: int, ignore_case: bool, bits: np.ndarray
) -> None:
    """Set the bits of all grams of values in `bits`, uint8 [blocks, BLOCK_BYTES], for blocks of `block_rows` rows. The
    first value is in row `first_row`. A null has no grams, or those of its bytes."""
    offsets, buffer = offsets_and_data(values)
    data, offsets = read_only(buffer), offsets.astype(np.int64)
    kernels = kernels_for("engine.indexes.ngram.kernels", _PLAIN_BYTE_NS * int(offsets[-1] - offsets[0]))
    if kernels is not None:
        kernels.mark(data, read_only(offsets), first_row, block_rows, ignore_case, CLASSES, bits)
    else:
        mark_grams_plain(data, offsets, first_row, block_rows, ignore_case, bits)


def mark_grams_plain(
    data: np.ndarray, offsets: np.ndarray, first_row: int, block_rows: int, ignore_case: bool, bits: np.ndarray
) -> None:
    """Do the same as `kernels.mark`, which is compiled."""
    for start in range(int(offsets[0]), int(offsets[-1]), _AT_ONCE_BYTES):
        stop = min(start + _AT_ONCE_BYTES, int(offsets[-1]))
        rows = np.searchsorted(offsets, np.arange(start, stop), side="right") - 1
        part = data[start : min(stop + LONG - 1, int(offsets[-1]))]
        stops = np.full(len(part), len(part))
        stops[: len(rows)] = offsets[rows + 1] - start
        is_gram, buckets = _buckets(_LOWER[part] if ignore_case else part, stops)
        is_gram[len(rows) :] = False
        blocks = (first_row + rows[is_gram[: len(rows)]]) // block_rows
        if len(blocks):
            low, high = int(blocks[0]), int(blocks[-1]) + 1
            is_set = np.zeros((high - low, BUCKETS), dtype=bool)
            is_set[blocks - low, buckets[is_gram]] = True
            bits[low:high] |= np.packbits(is_set, axis=1, bitorder="little")


def _buckets(data: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (bool [n]: a gram begins at this byte; int64 [n]: its bucket). `stops`, int64 [n]: the value's end."""
    count = len(data)
    padded = np.concatenate([data, np.zeros(LONG, dtype=np.uint8)])
    kinds = CLASSES[padded]
    word = np.zeros(count, dtype=np.uint64)
    for i in range(SHORT):
        word |= padded[i : count + i].astype(np.uint64) << np.uint64(8 * i)
    long_word = word.copy()
    for i in range(SHORT, LONG):
        long_word |= padded[i : count + i].astype(np.uint64) << np.uint64(8 * i)
    is_long, has_digit = np.ones(count, dtype=bool), np.zeros(count, dtype=bool)
    for i in range(SHORT):
        is_long &= kinds[i : count + i] & HEX != 0
        has_digit |= kinds[i : count + i] & DIGIT != 0
    is_long &= has_digit
    is_long |= kinds[:count] & LEAD != 0
    sizes = np.where(is_long, LONG, SHORT)
    is_gram = (kinds[:count] & INNER == 0) & (np.arange(count) + sizes <= stops)
    keys = np.where(is_long, long_word, word) ^ (sizes.astype(np.uint64) << np.uint64(56))
    return is_gram, (keys * np.uint64(MULTIPLIER) >> np.uint64(48)).astype(np.int64)
