"""How a file is written: the size of its blocks, and how they are compressed; as given, by default, or by a sample.

A choice is kept in the file's properties, and a merge goes on with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..errors import InvalidArgumentError
from . import codec
from .block import SECTION_BYTES_MAX
from .codec import Compressor
from .dictionary import Dictionary

KIB = 1024
BLOCK_SIZE_MAX_BYTES = SECTION_BYTES_MAX // 4

# A get pays for a block, a scan for what each block costs beside its entries. The default is the middle one.
BLOCK_SIZES_BYTES = {
    "get": (8 * KIB, 16 * KIB, 32 * KIB),
    "both": (16 * KIB, 32 * KIB, 64 * KIB),
    "scan": (32 * KIB, 64 * KIB, 128 * KIB),
}
LEVELS = range(1, 20)

PROPERTY_BLOCK_SIZE = "skipstone.settings.block_size"
PROPERTY_COMPRESSION = "skipstone.settings.compression"
PROPERTY_REASON = "skipstone.settings.reason"
_PROPERTIES = "skipstone.settings."
_CARRIED_OVER = "as the largest of the runs that were merged"


@dataclass(frozen=True)
class Settings:
    """How blocks are made.

    block_bytes   of keys and values before they are encoded
    level         of zstandard; None where nothing is compressed
    dictionary    that blocks are compressed with, or None
    reason        what decided; "" where nothing was sampled
    """

    block_bytes: int
    level: int | None = codec.ZSTD_LEVEL
    dictionary: Dictionary | None = None
    reason: str = ""

    def compressor(self) -> Compressor | None:
        """That of blocks."""
        return None if self.level is None else Compressor(self.level, self.dictionary)

    @property
    def dictionary_bytes(self) -> bytes | None:
        return None if self.dictionary is None else self.dictionary.data

    def compression_text(self) -> str:
        """As the file's properties tell it."""
        if self.level is None:
            return "none"
        shared = f", dictionary of {len(self.dictionary.data)} bytes" if self.dictionary else ""
        return f"zstd {self.level}{shared}"

    def properties(self) -> dict[str, str]:
        """What the file keeps of a choice: nothing where there was none."""
        if not self.reason:
            return {}
        return {
            PROPERTY_BLOCK_SIZE: str(self.block_bytes),
            PROPERTY_COMPRESSION: self.compression_text(),
            PROPERTY_REASON: self.reason,
        }


@dataclass(frozen=True)
class Asked:
    """What a writer was asked for, checked.

    settings        as given; defaults where the choice is free
    use             "get", "scan" or "both"
    free_size       whether the size of blocks is to be chosen
    free_packing    whether level and dictionary are
    """

    settings: Settings
    use: str
    free_size: bool
    free_packing: bool

    @property
    def is_free(self) -> bool:
        return self.free_size or self.free_packing


def asked_settings(
    block_size: str | int, compression: str, level: int | None, use: str, dictionary: bytes | None
) -> Asked:
    """What the arguments of a writer ask for. Raises InvalidArgumentError."""
    if use not in BLOCK_SIZES_BYTES:
        raise InvalidArgumentError(f"use {use!r} is not known: get, scan or both")
    is_size = isinstance(block_size, int) and not isinstance(block_size, bool)
    if block_size != "auto" and not (is_size and 1 <= int(block_size) <= BLOCK_SIZE_MAX_BYTES):
        raise InvalidArgumentError(f"block_size {block_size!r}: give bytes, 1 to {BLOCK_SIZE_MAX_BYTES:,}, or 'auto'")
    if compression not in ("auto", "zstd", "none"):
        raise InvalidArgumentError(f"compression {compression!r} is not known: auto, zstd or none")
    if level is not None and (compression != "zstd" or isinstance(level, bool) or level not in LEVELS):
        raise InvalidArgumentError(f"level {level!r}: give 1 to {LEVELS[-1]}, and compression='zstd' with it")
    if dictionary is not None and compression == "none":
        raise InvalidArgumentError("a dictionary without compression is of no use: give compression='zstd'")
    block_bytes = BLOCK_SIZES_BYTES[use][1] if block_size == "auto" else int(block_size)
    settings = Settings(
        block_bytes,
        None if compression == "none" else level or codec.ZSTD_LEVEL,
        None if dictionary is None else Dictionary.of(dictionary),
    )
    return Asked(settings, use, block_size == "auto", compression == "auto" and dictionary is None)


def carried_over(asked: Asked, properties: Mapping[str, str], dictionary: bytes | None) -> Settings:
    """The settings of a merge, in which nothing is sampled: what is free is as in the run of these properties and this
    dictionary, so that its blocks can be copied; as by default where that has none."""
    found = asked.settings
    size, packing = properties.get(PROPERTY_BLOCK_SIZE, ""), properties.get(PROPERTY_COMPRESSION, "")
    if asked.free_size and _number(size) in range(1, BLOCK_SIZE_MAX_BYTES + 1):
        found = replace(found, block_bytes=int(size), reason=_CARRIED_OVER)
    if asked.free_packing and packing == "none":
        found = replace(found, level=None, reason=_CARRIED_OVER)
    level = _number(packing.removeprefix("zstd ").partition(",")[0])
    if asked.free_packing and level in LEVELS:
        shared = None if dictionary is None else Dictionary.of(dictionary)
        found = replace(found, level=level, dictionary=shared, reason=_CARRIED_OVER)
    return found


def _number(text: str) -> int:
    """0 for what is none."""
    return int(text) if text.isdecimal() and len(text) < 12 else 0


def without_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """A file's properties, but for those that tell its settings: they are of that file."""
    return {name: text for name, text in properties.items() if not name.startswith(_PROPERTIES)}
