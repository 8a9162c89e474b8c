"""One split-block bloom filter: blocks, salts and block choice as in Parquet, so bits can be exchanged with it.

As bytes (`to_bytes`), little endian, 64 bytes of header and then the blocks:

    offset  size  what
    0       4     "SSBF"
    4       2     version, 1
    6       2     size of the hash's name, n
    8       8     number of blocks
    16      44    the hash's name in ASCII, then zeros
    60      4     CRC-32 of the 60 bytes before and of the blocks after
    64      32 b  b blocks of eight 32-bit words

Block choice multiplies the high half of a hash by the number of blocks. So a block of a filter k times larger is one of
the k neighbours that correspond to one block of the smaller filter: an OR of neighbours folds, repeating a block grows,
and neither loses a member.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from ..base.arrays import from_numpy, read_only
from ..base.lazy import kernels_for
from ..base.versions import bit_counts
from ..errors import CorruptionError, FormatVersionError, InvalidArgumentError
from . import numpy_filter
from .hashing import (
    PARQUET_PREFIX,
    HashedValues,
    checked_form,
    checked_hashes,
    checked_name,
    distinct,
    hash_array,
    hash_raw,
    pieces,
)
from .probes import probes_for
from .sizing import BLOCKS_MAX, checked_blocks, checked_fpp, solve_blocks

_MAGIC = b"SSBF"
_VERSION = 1
_HEADER = struct.Struct("<4sHHQ44sI")
_CHECKED_HEADER_SIZE_BYTES = 60
_PLAIN_INSERT_NS, _PLAIN_PROBE_NS = 150, 60
# An error of 0.2% in the count causes an error of 1% in the probability.
_SAMPLE_HASHES, _SAMPLE_LEAST = 1 << 18, 1 << 16


class SplitBlockFilter:
    """A set of values with false positives and without false negatives. Immutable.

    Attributes:
        hash: what was hashed: "int", "float", "bytes", "instant", "span", "decimal:SCALE" or "parquet:TYPE".
        words: uint32 [blocks, 8], read-only.
    """

    __slots__ = ("hash", "words")

    def __init__(self, words: np.ndarray, hash: str):
        """`words`: uint32 [blocks, 8], not copied. Call `build`, `from_bytes` or `from_parquet` to create a filter."""
        self.words = _checked_words(words)
        self.hash = checked_name(hash)

    @classmethod
    def build(
        cls,
        values: pa.Array | pa.ChunkedArray,
        fpp: float = 0.01,
        ndv: int | None = None,
        hash: str = "canonical",
        blocks: int | None = None,
        power_of_two: bool = False,
    ) -> SplitBlockFilter:
        """Return a filter of the values that are not null, of the smallest size that reaches `fpp`.

        Args:
            values: any Arrow array of scalars.
            fpp: the requested false-positive probability, above 0 and below 1.
            ndv: how many distinct values to size for; None counts them, see `estimated_distinct`.
            hash: "canonical", or "parquet:INT32" and so on for the bits of Parquet's own filters.
            blocks: the size in blocks of 32 bytes, in place of `fpp`.
            power_of_two: True rounds up to a power of two of blocks: any two such filters have a union.

        Raises:
            InvalidArgumentError: a type or an argument that has no meaning here.
        """
        fpp = checked_fpp(fpp)
        hashed: Iterable[HashedValues] = (hash_for_build(piece, hash) for piece in pieces(values, _PLAIN_INSERT_NS))
        if blocks is None:
            if ndv is None:
                hashed = list(hashed)
                ndv = estimated_distinct([each.present() for each in hashed])
            blocks = solve_blocks(ndv, fpp)
            blocks = 1 << (blocks - 1).bit_length() if power_of_two else blocks
        words = _empty_words(blocks)
        for each in hashed:
            insert_hashes(words, each.present())
        return cls(words, each.name)

    @classmethod
    def build_from_hashes(cls, hashes: np.ndarray, blocks: int, hash: str) -> SplitBlockFilter:
        """Return a filter with that many blocks of hashes, uint64 [n], of the given name. Callers leave out nulls."""
        words = _empty_words(blocks)
        insert_hashes(words, checked_hashes(hashes))
        return cls(words, hash)

    @classmethod
    def from_parquet(cls, bitset: bytes, physical_type: str) -> SplitBlockFilter:
        """Return a filter with the bitset (after its thrift header) of a Parquet file's column of that physical type.

        Raises:
            InvalidArgumentError: a physical type that has no filter.
            CorruptionError: a bitset that is empty or not made of blocks.
        """
        name = f"{PARQUET_PREFIX}{physical_type}"
        checked_form(name)
        return cls(_words_of(_flat_bytes(bitset)), name)

    @classmethod
    def from_bytes(cls, data: bytes) -> SplitBlockFilter:
        """Return the filter that `to_bytes` wrote; its blocks are not copied.

        Raises:
            CorruptionError: bytes that fail a check.
            FormatVersionError: sound bytes of a later version.
        """
        flat = _flat_bytes(data)
        if len(flat) < _HEADER.size:
            raise CorruptionError(f"a filter has at least {_HEADER.size} bytes, got {len(flat)}", check="filter size")
        magic, version, name_size, blocks, name, crc = _HEADER.unpack(flat[: _HEADER.size])
        if magic != _MAGIC:
            raise CorruptionError(f"a filter begins with {_MAGIC!r}, got {magic!r}", offset=0, check="filter magic")
        if crc != _crc(flat[:_CHECKED_HEADER_SIZE_BYTES], flat[_HEADER.size :]):
            raise CorruptionError("a filter's checksum does not match", offset=60, check="filter checksum")
        if version != _VERSION:
            raise FormatVersionError(f"a filter of version {version}: this release reads version {_VERSION}")
        if len(flat) - _HEADER.size != blocks * numpy_filter.BLOCK_SIZE_BYTES or name_size > len(name):
            raise CorruptionError(
                f"a filter of {blocks:,} blocks in {len(flat):,} bytes", offset=8, check="filter size"
            )
        try:
            return cls(_words_of(flat[_HEADER.size :]), name[:name_size].decode("ascii", "replace"))
        except InvalidArgumentError as error:
            raise FormatVersionError(f"a filter that this release cannot probe: {error}") from error

    def to_bytes(self) -> bytes:
        """Return the filter as bytes, in the layout at the head of this module."""
        name = self.hash.encode("ascii")
        head = _HEADER.pack(_MAGIC, _VERSION, len(name), self.blocks, name, 0)[:_CHECKED_HEADER_SIZE_BYTES]
        bits = self.words.tobytes()
        return b"".join((head, struct.pack("<I", _crc(head, bits)), bits))

    @property
    def blocks(self) -> int:
        """The size in blocks of 32 bytes."""
        return len(self.words)

    @property
    def size_bytes(self) -> int:
        """The size of the blocks in bytes; `to_bytes` adds 64."""
        return self.words.nbytes

    @property
    def fpp(self) -> float:
        """The false-positive probability of the current bits: per block the product of its words' shares of set bits,
        averaged over the blocks. It is exact for hashes that are uniform."""
        return measured_fpp(self.words)

    def contains(self, values: pa.Array | pa.ChunkedArray) -> pa.BooleanArray:
        """Return, per value, True if the filter may contain it, False if it does not, null if the value is null.

        The values must be of the kind in the filter; see `probes.probes_for` for decimals and Parquet's floats.

        Raises:
            InvalidArgumentError: values of another kind.
        """
        answers = [self._contains_piece(piece) for piece in pieces(values, _PLAIN_PROBE_NS)]
        return answers[0] if len(answers) == 1 else pa.concat_arrays(answers)

    def _contains_piece(self, values: pa.Array | pa.ChunkedArray) -> pa.BooleanArray:
        probes = probes_for(values, self.hash)
        hits = self.contains_hashes(probes.hashes)
        if probes.other_hashes is not None:
            hits |= self.contains_hashes(probes.other_hashes)
        return from_numpy(probes.fill_known(hits), probes.valid)

    def contains_hashes(self, hashes: np.ndarray) -> np.ndarray:
        """Return bool [n]: as `contains`, for hashes, uint64 [n], of this filter's name."""
        hashes = checked_hashes(hashes)
        kernels = kernels_for("bloom.kernels", _PLAIN_PROBE_NS * len(hashes))
        if kernels is None:
            return numpy_filter.probe(self.words, hashes)
        return kernels.probe(read_only(self.words.reshape(-1)), read_only(hashes))

    def fold(self, bucket_count: int) -> SplitBlockFilter:
        """Return the same values in fewer blocks, `bucket_count`, as if built with this size: more false positives, no
        false negatives.

        Raises:
            InvalidArgumentError: a size that does not divide this one.
        """
        return SplitBlockFilter(fold_words(self.words, checked_blocks(bucket_count)), self.hash)

    def replicate(self, blocks: int) -> SplitBlockFilter:
        """Return the same values in more blocks, with the same answers. Raise InvalidArgumentError if this size does
        not divide the new one."""
        return SplitBlockFilter(replicate_words(self.words, checked_blocks(blocks)), self.hash)

    def union(self, other: SplitBlockFilter) -> SplitBlockFilter:
        """Return a filter of both sets of values, of the larger size. Unions fill up: size the first for all values.

        Raises:
            InvalidArgumentError: filters of different hashes, or sizes of which neither divides the other.
        """
        if not isinstance(other, SplitBlockFilter):
            raise InvalidArgumentError(f"a filter is joined with a filter, not {other!r}")
        if self.hash != other.hash:
            raise InvalidArgumentError(f"a filter of {self.hash!r} and one of {other.hash!r} have no union")
        blocks = max(self.blocks, other.blocks)
        return SplitBlockFilter(replicate_words(self.words, blocks) | replicate_words(other.words, blocks), self.hash)

    def __reduce__(self):
        return SplitBlockFilter.from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        return f"SplitBlockFilter(hash={self.hash!r}, blocks={self.blocks})"


# -- words ------------------------------------------------------------------------------------------------------------


def hash_for_build(values: pa.Array | pa.ChunkedArray, hash: str) -> HashedValues:
    """Return the hashes of values under "canonical" or a Parquet form."""
    return hash_array(values) if hash == "canonical" else hash_raw(values, hash)


def estimated_distinct(parts: Sequence[np.ndarray]) -> int:
    """Return how many distinct hashes some arrays of uint64 contain: exactly if they are few, otherwise to within about
    1%. Hashes are uniform, so those below a threshold are a sample of the distinct ones, however often each occurs."""
    total = sum(map(len, parts))
    if total > _SAMPLE_HASHES:
        threshold = np.uint64((1 << 64) // total * _SAMPLE_HASHES)
        sample = distinct(np.concatenate([part[part < threshold] for part in parts]))
        if len(sample) >= _SAMPLE_LEAST:
            return round(len(sample) * total / _SAMPLE_HASHES)
    return len(distinct(np.concatenate([np.empty(0, dtype=np.uint64), *parts])))


def _empty_words(blocks: int) -> np.ndarray:
    return np.zeros((checked_blocks(blocks), numpy_filter.WORDS_PER_BLOCK), dtype=np.uint32)


def insert_hashes(words: np.ndarray, hashes: np.ndarray) -> None:
    """Set the bits of hashes, uint64 [n], in words, uint32 [blocks, 8] and contiguous."""
    kernels = kernels_for("bloom.kernels", _PLAIN_INSERT_NS * len(hashes))
    if kernels is None:
        numpy_filter.insert(words, hashes)
    else:
        kernels.insert(words.reshape(-1), read_only(hashes))


def fold_words(words: np.ndarray, blocks: int) -> np.ndarray:
    """Return the OR of neighbours: uint32 [n, 8] to [blocks, 8]."""
    if len(words) % blocks:
        raise InvalidArgumentError(f"{len(words):,} blocks do not fold into {blocks:,}: the size must divide")
    if len(words) == blocks:
        return words
    return np.bitwise_or.reduce(words.reshape(blocks, -1, numpy_filter.WORDS_PER_BLOCK), axis=1)


def replicate_words(words: np.ndarray, blocks: int) -> np.ndarray:
    """Return each block repeated: uint32 [n, 8] to [blocks, 8]."""
    if blocks % len(words):
        raise InvalidArgumentError(f"{len(words):,} blocks do not grow into {blocks:,}: the size must divide")
    return words if len(words) == blocks else np.repeat(words, blocks // len(words), axis=0)


def measured_fpp(words: np.ndarray) -> float:
    """Return the mean over blocks, uint32 [blocks, 8], of the product over words of the share of set bits."""
    return float((bit_counts(words) / 32.0).prod(axis=1).mean())


def _checked_words(words: np.ndarray) -> np.ndarray:
    shape = words.shape
    if (
        words.dtype != np.uint32
        or len(shape) != 2
        or shape[1] != numpy_filter.WORDS_PER_BLOCK
        or not words.flags.c_contiguous
    ):
        raise InvalidArgumentError(f"a filter's words are contiguous uint32 [blocks, 8]: got {words.dtype} {shape}")
    checked_blocks(shape[0])
    return read_only(words)


def _flat_bytes(data: bytes) -> memoryview:
    try:
        return memoryview(data).cast("B")
    except TypeError as error:
        raise InvalidArgumentError(f"expected bytes, got {type(data).__name__}") from error


def _words_of(bits: memoryview) -> np.ndarray:
    blocks, rest = divmod(len(bits), numpy_filter.BLOCK_SIZE_BYTES)
    if rest or not 1 <= blocks <= BLOCKS_MAX:
        raise CorruptionError(f"{len(bits):,} bytes are not from 1 to {BLOCKS_MAX:,} blocks of 32", check="filter size")
    words = np.frombuffer(bits, dtype="<u4").reshape(blocks, numpy_filter.WORDS_PER_BLOCK)
    return words if words.flags.aligned else words.copy()


def _crc(head: bytes | memoryview, bits: bytes | memoryview) -> int:
    return zlib.crc32(bits, zlib.crc32(head))
