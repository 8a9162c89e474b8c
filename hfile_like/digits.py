"""Numbers and bytes as the characters of their digits, many at a time: the plain twins of `kernels_templates`."""

from __future__ import annotations

from functools import cache

import numpy as np

DIGITS_MAX = 18
# So often must a number come on average, for each of a few to be written once.
_REPEATS_LEAST = 8


def digit_counts(numbers: np.ndarray) -> np.ndarray:
    """int64 [n]: how many decimal digits uint64 numbers have."""
    return np.searchsorted(_powers(), numbers, side="right") + 1


def shapes_of(digits: list[np.ndarray], count: int) -> np.ndarray | None:
    """int64 [n]: a number for each set of lengths; None where all rows have one."""
    found = None
    for lengths in digits:
        if count and (lengths != lengths[0]).any():
            found = lengths if found is None else found * (DIGITS_MAX + 1) + lengths
    return found


def write_digits(out: np.ndarray, numbers: np.ndarray) -> None:
    """Fills uint8 [n, digits] with the decimal digits of uint64 numbers, zeros in front."""
    begins = np.flatnonzero(numbers[1:] != numbers[:-1])
    if _REPEATS_LEAST * (len(begins) + 1) <= len(numbers):  # neighbours are alike: each is written once
        few = np.empty((len(begins) + 1, out.shape[1]), dtype=np.uint8)
        write_digits(few, numbers[np.append(begins, len(numbers) - 1)])
        out[:] = np.repeat(few, np.diff(begins, prepend=-1, append=len(numbers) - 1), axis=0)
        return
    at = out.shape[1]
    fours = _fours()
    if at <= 9:
        numbers = numbers.astype(np.uint32)
    ten_thousand = numbers.dtype.type(10_000)
    while at > 4:
        rest = numbers // ten_thousand
        low = numbers - rest * ten_thousand
        out[:, at - 4 : at].view("<u4")[:, 0] = fours.take(low.astype(np.int64))
        numbers, at = rest, at - 4
    if at:
        out[:, :at] = fours.take(numbers.astype(np.int64)).view(np.uint8).reshape(-1, 4)[:, 4 - at :]


def write_hex(out: np.ndarray, data: np.ndarray, runs: tuple[tuple[int, int, int], ...]) -> None:
    """Fills uint8 [n, characters] with the hexadecimal digits of uint8 [n, k]; `runs`: (first digit, first character,
    how many) of digits that stand together."""
    # Two digits in the two bytes of a number: a letter is 39 further than a digit would be.
    pairs = data.astype("<u2")
    pairs = (pairs >> 4) | ((pairs & 0x0F) << 8)
    pairs += 0x3030 + ((pairs + 0x0606) >> 4 & 0x0101) * np.uint16(39)
    digits = pairs.view(np.uint8)
    for first, at, size in runs:
        _copy_columns(out[:, at : at + size], digits[:, first : first + size])


def _copy_columns(out: np.ndarray, columns: np.ndarray) -> None:
    """Copies uint8 [n, k]: eight bytes at once, then four, where there are so many."""
    at, size = 0, out.shape[1]
    for width in (8, 4):
        while size - at >= width:
            part = slice(at, at + width)
            out[:, part].view(f"<u{width}")[:, 0] = columns[:, part].view(f"<u{width}")[:, 0]
            at += width
    out[:, at:] = columns[:, at:]


@cache
def _powers() -> np.ndarray:
    return np.array([10**k for k in range(1, DIGITS_MAX + 1)], dtype=np.uint64)


@cache
def _fours() -> np.ndarray:
    """uint32 [10000]: the four digits of each number, as bytes in memory."""
    digits = np.arange(10_000)[:, None] // np.array([1000, 100, 10, 1]) % 10 + ord("0")
    return digits.astype(np.uint8).reshape(-1).view(np.uint32)
