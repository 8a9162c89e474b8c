"""A small sorted-block file for each encoding and each section, by name: tests damage them, and some are golden files.

Their contents are computed, so that they are the same in every run.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pyarrow as pa
from skipstone.hfile_like import SortedFileWriter
from sorted_file_builders import written


def noise(seed: int, length: int) -> bytes:
    """Bytes that do not compress, the same each time."""
    return hashlib.shake_128(seed.to_bytes(8, "big")).digest(length)


def uuid_text(seed: int, version: int = 4) -> str:
    """A uuid of a version."""
    raw = bytearray(noise(seed, 16))
    raw[6], raw[8] = version << 4 | raw[6] & 15, 0x80 | raw[8] & 63
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def number_keys(count: int, prefix: bytes = b"\x03\x00\x07") -> list[bytes]:
    """A prefix and numbers on a line."""
    return [prefix + (5 + 3 * i).to_bytes(8, "big") for i in range(count)]


def make(
    keys: list[bytes], columns: dict[str, pa.Array], deleted: list[bool] | None = None, **options: object
) -> bytes:
    """A file of entries alone."""
    return written(keys, pa.record_batch(columns) if columns else None, deleted, **options)


# -- keys -------------------------------------------------------------------------------------------------------------


def keys_fixed(compression: str) -> bytes:
    keys = sorted(noise(i, 20) for i in range(9))
    return make(keys, {"n": pa.array(range(9), pa.int8())}, compression=compression)


def keys_bundles(compression: str) -> bytes:
    keys = sorted(
        {b"", b"\x00", b"\x00\x00", b"\xff" * 3, *(b"key/%d/%s" % (i // 7, b"x" * (i % 7)) for i in range(20))}
    )
    return make(keys, {"n": pa.array(range(len(keys)), pa.int8())}, compression=compression)


def keys_long(compression: str) -> bytes:
    """Lengths of two bytes."""
    keys = [b"a" * 40, b"a" * 40 + noise(1, 300), b"b" + noise(2, 20)]
    return make(keys, {}, [False, True, False], compression=compression)


def keys_numbers(compression: str) -> bytes:
    """Without a prefix, on a line, near a line, and far apart: four blocks."""
    far = [2, 40, 10**6, 10**12, 2**63, 2**64 - 1]
    blocks = [
        [b"\x00%c" % (i * i) for i in range(6)],
        number_keys(6),
        [b"\x03\x00\x08" + (100 + 7 * i + i * i % 5).to_bytes(8, "big") for i in range(6)],
        [b"\x03\x00\x09" + n.to_bytes(8, "big") for n in far],
    ]
    target = io.BytesIO()
    schema = pa.schema([("n", pa.int64())])
    with SortedFileWriter(target, schema=schema, compression=compression, summaries=["n"]) as writer:
        for b, keys in enumerate(blocks):
            writer.write(keys, pa.record_batch({"n": [b * i * i for i in range(6)]}), [i == b for i in range(6)])
            writer.end_group(str(b))
    return target.getvalue()


# -- values -----------------------------------------------------------------------------------------------------------


def _with_nulls(items: list, kind: pa.DataType, each: int) -> pa.Array:
    return pa.array([None if i % each == 0 else item for i, item in enumerate(items)], kind)


def values_fixed(compression: str) -> bytes:
    """Floats, decimals, bytes of one length, bools, and nothing but nulls."""
    n = range(6)
    zone = dt.UTC
    columns = {
        "f": _with_nulls([0.0, -0.0, float("nan"), float("inf"), 1.5, -2.25], pa.float64(), 4),
        "h": pa.array([i / 3 for i in n], pa.float32()),
        "d": _with_nulls([Decimal(i * 10**i) / 100 for i in n], pa.decimal128(20, 2), 5),
        "x": pa.array([noise(i, 3) for i in n], pa.binary(3)),
        "b": _with_nulls([i % 3 == 1 for i in n], pa.bool_(), 3),
        "c": pa.array([True] * 6),
        "z": pa.nulls(6, pa.int8()),
        "t": pa.array([dt.datetime(1 + 1500 * i, 1, 2, tzinfo=zone) for i in n], pa.timestamp("us", "UTC")),
    }
    return make(number_keys(6), columns, [False, True, *[False] * 4], compression=compression, summaries=["b"])


def values_frames(compression: str) -> bytes:
    """Integers, dates and times, items of 0 to 6 bytes."""
    n = range(13)
    columns = {f"w{w}": pa.array([-7 + int.from_bytes(noise(i, w), "big") for i in n], pa.int64()) for w in range(7)}
    columns["u"] = _with_nulls([2**64 - 1 - i * i for i in n], pa.uint64(), 2)
    columns["day"] = _with_nulls([20_000 + i * i for i in n], pa.int32(), 4).cast(pa.date32())
    columns["at"] = pa.array([i * 1_000_003 + i % 2 for i in n], pa.int64()).cast(pa.timestamp("ns"))
    return make(number_keys(13), columns, compression=compression, summaries=["day", "w2"])


def values_strings(compression: str) -> bytes:
    """As they are, and by a dictionary of one value or of some."""
    n = range(20)
    columns = {
        "s": _with_nulls(["é" * (i % 3) + noise(i, i).hex() for i in n], pa.string(), 19),
        "k": _with_nulls([["low", "lög"][i % 2] * 3 for i in n], pa.large_string(), 3),
        "o": pa.array([b"only this one"] * 20, pa.binary()),
    }
    return make(number_keys(20), columns, compression=compression, summaries=["s", "k"])


def values_large(compression: str) -> bytes:
    """More values than a dictionary may have, of a large type; integers of which the lowest bytes alone do not
    compress."""
    values = [i.to_bytes(2, "big")[i < 256 :] for i in range(258)]
    numbers = [(i // 50 << 8) + i * 167 % 256 for i in range(258)]
    columns = {"l": pa.array(values, pa.large_binary()), "p": pa.array(numbers, pa.int32())}
    return make(number_keys(258), columns, compression=compression)


def values_names(compression: str) -> bytes:
    """Templates with every kind of part."""
    n = 40
    few = [7, 10**6, 10**12, 123_456_789]
    columns = {
        "random": [f"part-{i:05d}-{uuid_text(i)}-c{i * i % 11}.parquet" for i in range(n)],
        "other": _with_nulls([f"{uuid_text(i, 7)}/{noise(i, 6).hex()}" for i in range(n)], pa.string(), 6),
        "numbers": [f"at-{few[i * i % 4]}-{i * 3 % 4:03d}-{i}.log" for i in range(n)],
        "alike": [f"{10**12 + 1000 * i * i}_{uuid_text(7)}" for i in range(n)],
    }
    return make(number_keys(n), {k: pa.array(v, pa.string()) for k, v in columns.items()}, compression=compression)


# -- sections ---------------------------------------------------------------------------------------------------------


def sections(compression: str) -> bytes:
    """Several blocks in groups, row tables, metas, summaries."""
    target = io.BytesIO()
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())], metadata={"made": "here"})
    options = {"block_size": 60, "summaries": ["n", "s"]}
    with SortedFileWriter(target, schema=schema, compression=compression, **options) as writer:  # type: ignore[arg-type]
        for g in range(3):
            keys = [b"%d/%02d" % (g, i) for i in range(5)]
            rows = pa.record_batch({"n": [g * 100 + i for i in range(5)], "s": [None, "a", "", "b", "c" * g]})
            writer.write(
                keys, rows.cast(pa.schema([("n", pa.int64()), ("s", pa.string())])), [i == g for i in range(5)]
            )
            writer.end_group(f"group {g}")
            if g == 1:
                writer.write_rows("rows", np.frombuffer(noise(9, 24), np.uint8).reshape(4, 6), 6)
        writer.end_group("nothing")
        writer.write_rows("none", np.zeros((0, 3), np.uint8), 3)
        writer.put_meta("m", b"meta" * 30)
        writer.put_meta("empty", b"")
    return target.getvalue()


def many_blocks(compression: str) -> bytes:
    """As many blocks as entries."""
    keys = [b"%03d" % (7 * i) for i in range(30)]
    columns = {"n": pa.array([i % 7 for i in range(30)], pa.int16()), "s": pa.array([str(i) for i in range(30)])}
    return make(keys, columns, compression=compression, block_size=1, summaries=["n", "s"])


def empty(compression: str) -> bytes:
    """No entry at all."""
    return make([], {"n": pa.array([], pa.int64())}, compression=compression, summaries=["n"])


def wide_text(compression: str) -> bytes:
    """Names, and integers of which the lowest byte does not compress."""
    n = 120
    keys = sorted(f"d={i // 60:02d}/{uuid_text(i)}-{i * 7 % 30 + 5}.parquet".encode() for i in range(n))
    columns = {
        "n": pa.array([10**6 + (i * i * 37 % 5000 << 8) + noise(i, 1)[0] for i in range(n)], pa.int64()),
        "s": pa.array([f"{i % 5:03d}/{uuid_text(i)}.parquet" for i in range(n)], pa.string()),
    }
    return make(keys, columns, [i % 11 == 0 for i in range(n)], compression=compression, block_size=3000)


MAKERS: dict[str, Callable[[str], bytes]] = {
    maker.__name__: maker
    for maker in (
        *(keys_fixed, keys_bundles, keys_long, keys_numbers),
        *(values_fixed, values_frames, values_strings, values_large, values_names),
        *(sections, many_blocks, empty, wide_text),
    )
}


def names() -> list[str]:
    """Of all small files: maker/compression."""
    return [f"{maker}/{compression}" for maker in MAKERS for compression in ("none", "zstd")]


def file_of(name: str) -> bytes:
    """The bytes of one of `names`."""
    maker, compression = name.split("/")
    return MAKERS[maker](compression)
