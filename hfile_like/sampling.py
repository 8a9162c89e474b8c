"""Choosing how to write a file by its first entries.

The writer keeps them back until there are `SAMPLE_BYTES`. A part of those is encoded in each way that is in question,
and the cheapest is taken. A file that ends before that takes the defaults at once: choosing takes as long as writing 3
to 6 MB does. So do groups that end before; the choice is then for what comes after them. It follows from the entries
alone, never from a clock: the same entries give the same file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from . import codec
from .block import Block
from .codec import Compressor, Where
from .dictionary import Dictionary, train
from .entries import Entries
from .settings import BLOCK_SIZES_BYTES, KIB, Asked, Settings

SAMPLE_BYTES = 4 << 20
_ENTRIES_MIN = 64

# What is tried: stretches that lie evenly in the sample, each at least as long as the largest block in question. A
# dictionary is trained on every other, and kept by what it gains on those between.
_STRETCHES = 4
_STRETCH_BYTES_MIN = 128 * KIB
_LEVEL_HIGHER = 3
_DICTIONARY_BYTES = 16 * KIB
_TRAINING_PIECE_BYTES, _TRAINING_PIECES_MAX = 4 * KIB, 256
# A dictionary must save so many times its own bytes on a file as large as the sample.
_DICTIONARY_GAIN = 4
# The default stays unless something else costs so much less: neighbours within that are a matter of the sample.
_CLEARLY = 0.97
# What is not plain level 1 must cost so much less than that: level 3 takes longer to write, a dictionary is one more
# thing to read and to carry from merge to merge, and raw bytes travel worse than they are read here.
_HANDICAP = 1.04

# The model's prices, in nanoseconds: what a get and a block of a scan take beside their bytes; a byte that is read and
# checked; a byte that zstandard gives. Measured on names, texts, typed columns and random bytes, in blocks of 8 to
# 128 KiB, packed and raw, in the page cache, by one thread on a Zen 5 whose cores others used, too: least squares of
# the relative errors.
_GET_NS = 40_000.0
_SCAN_BLOCK_NS = 20_000.0
_SCAN_ENTRY_NS = 20.0
_STORED_BYTE_NS = 0.15
_UNPACKED_BYTE_NS = 0.6
# Of a block in the index, beside its two keys.
_INDEX_BLOCK_BYTES = 24


class BuildBlock(Protocol):
    """Gives the bytes of a block of some entries."""

    def __call__(self, entries: Entries, compressor: Compressor | None) -> bytes: ...


# -- the sample -------------------------------------------------------------------------------------------------------


@dataclass
class Sample:
    """The first entries of a file, kept back: parts with the bytes of each of their rows."""

    parts: list[tuple[Entries, np.ndarray]] = field(default_factory=list)
    size_bytes: int = 0
    _own_parts: int = 0
    _given_parts: int = 0

    def add(self, part: Entries, row_bytes: np.ndarray) -> None:
        self.parts.append((part, row_bytes))
        self.size_bytes += int(row_bytes.sum())

    def given(self) -> list[tuple[Entries, np.ndarray]]:
        """The parts that were added since the last call; they stay in the sample."""
        waiting, self._given_parts = self.parts[self._given_parts :], len(self.parts)
        return waiting

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= SAMPLE_BYTES

    @property
    def can_tell(self) -> bool:
        """Whether there is something to choose: entries so long that there are few are blocks of their own anyway."""
        return self.is_full and sum(len(part) for part, _ in self.parts) >= _ENTRIES_MIN

    def own(self) -> None:
        """Copies what was added since the last call: it must not hold memory that the caller may change."""
        given = self.parts[self._own_parts :]
        if given:
            entries = Entries.concat([part for part, _ in given])
            entries = entries if len(given) > 1 else entries.compact()
            self.parts[self._own_parts :] = [(entries, np.concatenate([size for _, size in given]))]
        # Many small writes are put together, in steps: what lies longest is copied least.
        while len(self.parts) > self._given_parts + 1 and len(self.parts[-2][1]) <= 2 * len(self.parts[-1][1]):
            (first, sizes), (second, more) = self.parts[-2:]
            self.parts[-2:] = [(Entries.concat([first, second]), np.concatenate([sizes, more]))]
        self._own_parts = len(self.parts)

    def stretches(self, length_bytes: int) -> list[tuple[Entries, np.ndarray]]:
        """`_STRETCHES` parts of about a length that lie evenly in the first `SAMPLE_BYTES`."""
        sizes = np.concatenate([size for _, size in self.parts])
        ends = np.cumsum(sizes)
        starts = np.linspace(0, SAMPLE_BYTES - length_bytes, _STRETCHES).astype(np.int64)
        # A row may be longer than a stretch, which then is that row, or none where the one before has it.
        lows = np.searchsorted(ends, starts, side="right").tolist()
        highs = (np.searchsorted(ends, starts + length_bytes) + 1).tolist()
        bounds = zip([max(pair) for pair in zip(lows, [0, *highs], strict=False)], highs, strict=True)
        return [(self._rows(low, high), sizes[low:high]) for low, high in bounds if low < high]

    def _rows(self, low: int, high: int) -> Entries:
        found, at = [], 0
        for part, size in self.parts:
            first, last = max(low - at, 0), min(high - at, len(size))
            if first < last:
                found.append(part.slice(first, last - first))
            at += len(size)
        return Entries.concat(found)


# -- the choice -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Section:
    """A section of a block as level 1 leaves it, and its plain bytes."""

    codec: int
    stored: int
    unpacked: int
    plain: bytes


@dataclass(frozen=True)
class _Trial:
    """Stretches in blocks of one size: the sections of each, of each stretch; bytes of what is beside them."""

    block_bytes: int
    sections: list[list[_Section]]
    blocks: int
    entries: int
    plain_bytes: int
    other_bytes: int


@dataclass(frozen=True)
class _Price:
    """What one way of writing costs, by the model; bytes and nanoseconds an entry, a get in nanoseconds."""

    settings: Settings
    entry_bytes: float
    get_ns: float
    scan_ns: float

    def cost(self, use: str) -> float:
        """Bytes times the root of time: a part more bytes counts as twice that part more time, for bytes are kept,
        moved and cached whether or not they are read."""
        time = {"get": self.get_ns, "scan": self.scan_ns, "both": math.sqrt(self.get_ns * self.scan_ns)}[use]
        is_plain = self.settings.level == codec.ZSTD_LEVEL and self.settings.dictionary is None
        return self.entry_bytes * math.sqrt(time) * (1.0 if is_plain else _HANDICAP)


def choose(sample: Sample, schema: pa.Schema, asked: Asked, build: BuildBlock) -> Settings:
    """The settings for a file that begins as `sample`, which is full. `build` gives the block of some entries."""
    given = asked.settings
    sizes = BLOCK_SIZES_BYTES[asked.use] if asked.free_size else (given.block_bytes,)
    stretches = sample.stretches(min(max(_STRETCH_BYTES_MIN, *sizes), SAMPLE_BYTES // _STRETCHES))
    fixed = None if asked.free_packing else given.compressor()
    packed = Compressor() if asked.free_packing else fixed
    trials = {
        size: _tried(stretches, schema, size, partial(build, compressor=packed), given.dictionary) for size in sizes
    }
    prices = [_price(replace(given, block_bytes=size), trial, _stored(trial)) for size, trial in trials.items()]
    default = next(p for p in prices if p.settings.block_bytes == given.block_bytes)

    def cost(price: _Price) -> float:
        return price.cost(asked.use)

    if asked.free_packing:
        dictionary = _dictionary(trials[sizes[0]])
        if dictionary is not None:
            prices += [found for trial in trials.values() for found in _with_dictionary(trial, dictionary)]
        prices += _other_packings(trials[min(prices, key=cost).settings.block_bytes])
    best = min(prices, key=cost)
    if cost(best) > _CLEARLY * cost(default):
        best = default
    return replace(best.settings, reason=_reason(best, prices, asked.use))


def _tried(
    stretches: Sequence[tuple[Entries, np.ndarray]],
    schema: pa.Schema,
    block_bytes: int,
    build: Callable[[Entries], bytes],
    dictionary: Dictionary | None,
) -> _Trial:
    sections: list[list[_Section]] = []
    blocks = entries = plain_bytes = other_bytes = 0
    bounds: list[bytes] = []
    for stretch, row_bytes in stretches:
        ends = np.cumsum(row_bytes)
        plain_bytes += int(ends[-1])
        cuts = np.searchsorted(ends, np.arange(0, int(ends[-1]), block_bytes))
        found: list[_Section] = []
        for low, high in zip(cuts.tolist(), [*cuts[1:].tolist(), len(stretch)], strict=True):
            if low == high:
                continue
            part = stretch.slice(low, high - low)
            data = memoryview(build(part))
            block = Block(data, Where(None, 0), schema, dictionary)
            parts = enumerate(block.sections())
            told = [_Section(s.codec, s.stored, s.unpacked, bytes(block.plain(i))) for i, s in parts]
            found += told
            bounds += [part.keys[0].as_py(), part.keys[len(part) - 1].as_py()]
            blocks, entries = blocks + 1, entries + len(part)
            other_bytes += len(data) - sum(section.stored for section in told)
        sections.append(found)
    index = len(codec.compress(b"".join(bounds), Compressor())[1]) + _INDEX_BLOCK_BYTES * blocks
    return _Trial(block_bytes, sections, blocks, entries, plain_bytes, other_bytes + index)


def _stored(trial: _Trial) -> list[tuple[int, int]]:
    """(stored bytes, bytes that zstandard gives) of each section, as it is."""
    return [(s.stored, s.unpacked) for part in trial.sections for s in part]


def _price(settings: Settings, trial: _Trial, stored: Sequence[tuple[int, int]], more_bytes: float = 0.0) -> _Price:
    stored_bytes = sum(s for s, _ in stored) + trial.other_bytes + more_bytes
    reading_ns = stored_bytes * _STORED_BYTE_NS + sum(plain for _, plain in stored) * _UNPACKED_BYTE_NS
    return _Price(
        settings,
        stored_bytes / trial.entries,
        _GET_NS + reading_ns / trial.blocks,
        _SCAN_ENTRY_NS + (_SCAN_BLOCK_NS * trial.blocks + reading_ns) / trial.entries,
    )


def _with_dictionary(trial: _Trial, dictionary: Dictionary) -> list[_Price]:
    """The price with a dictionary; nothing where it does not pay for itself."""
    compressor = Compressor(codec.ZSTD_LEVEL, dictionary)
    held_out = [section for part in trial.sections[1::2] for section in part]
    before, after = sum(s.stored for s in held_out), sum(_packed(s, compressor)[0] for s in held_out)
    stored = _stored(trial)
    gain = sum(size for size, _ in stored) * (before - after) / max(1, before)
    # The sample stands for a file of its own size: the least that the dictionary has to pay for itself on.
    if gain * SAMPLE_BYTES / trial.plain_bytes < _DICTIONARY_GAIN * len(dictionary.data):
        return []
    return [_price(Settings(trial.block_bytes, codec.ZSTD_LEVEL, dictionary), trial, stored, -gain)]


def _other_packings(trial: _Trial) -> list[_Price]:
    """The prices of not compressing at all, and of a higher level."""
    sections = [section for part in trial.sections for section in part]
    higher = Compressor(_LEVEL_HIGHER)
    return [
        _price(Settings(trial.block_bytes, None), trial, [(len(s.plain), 0) for s in sections]),
        _price(
            Settings(trial.block_bytes, _LEVEL_HIGHER),
            trial,
            [_packed(s, higher) if s.codec else (s.stored, 0) for s in sections],
        ),
    ]


def _packed(section: _Section, compressor: Compressor) -> tuple[int, int]:
    if section.codec == codec.CODEC_ZSTD_HEAD:
        return section.stored, section.unpacked
    gain = codec.GAIN_THIRD if section.codec == codec.CODEC_RAW else codec.GAIN_LEAST
    packed_as, stored = codec.compress(section.plain, compressor, gain)
    return len(stored), len(section.plain) if packed_as else 0


def _dictionary(trial: _Trial) -> Dictionary | None:
    """Trained on every other stretch; None where little compresses."""
    pieces = [s.plain for part in trial.sections[::2] for s in part if s.codec == codec.CODEC_ZSTD]
    plain = sum(len(s.plain) for part in trial.sections[::2] for s in part)
    if 5 * sum(map(len, pieces)) < plain:
        return None
    cut = [p[at : at + _TRAINING_PIECE_BYTES] for p in pieces for at in range(0, len(p), _TRAINING_PIECE_BYTES)]
    return train(cut[:_TRAINING_PIECES_MAX], _DICTIONARY_BYTES)


def _reason(best: _Price, prices: Sequence[_Price], use: str) -> str:
    """The figures that decided: beside the best, each other size at its best and each other packing of this size."""
    cost, size = best.cost(use), best.settings.block_bytes
    of_size: dict[int, _Price] = {}
    for price in sorted(prices, key=lambda price: price.cost(use)):
        of_size.setdefault(price.settings.block_bytes, price)
    others = [p for p in prices if p is not best and (p.settings.block_bytes == size or p in of_size.values())]
    told = ", ".join(f"{_label(p.settings)} {100 * (p.cost(use) / cost - 1):+.1f}%" for p in others)
    told = f"; others cost {told}" if told else ""
    return (
        f"by the first {SAMPLE_BYTES >> 20} MiB, for {use!r}: {_label(best.settings)}, {best.entry_bytes:.1f} bytes "
        f"and {best.scan_ns:.0f} ns an entry, {best.get_ns / 1e3:.0f} µs a cold get{told}"
    )


def _label(settings: Settings) -> str:
    packing = "raw" if settings.level is None else f"zstd {settings.level}"
    return f"{settings.block_bytes / KIB:g} KiB {packing}{' + dictionary' if settings.dictionary else ''}"
