"""Values for the mass test: a palette of about a dozen for each column, small ones, extremes and odd ones, and what a
row group draws from it: values of a narrow window, nulls, NaN.
"""

from __future__ import annotations

import random
from decimal import Decimal

import numpy as np
import pyarrow as pa

KINDS: dict[str, pa.DataType] = {
    **{f"i{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(pa, f"uint{bits}")() for bits in (8, 16, 32, 64)},
    "flag": pa.bool_(),
    "f16": pa.float16(),
    "f32": pa.float32(),
    "f64": pa.float64(),
    "d5": pa.decimal128(5, 2),
    "d18": pa.decimal128(18, 0),
    "d38": pa.decimal128(38, 4),
    "d38s": pa.decimal128(38, 38),
    "d60": pa.decimal256(60, 7),
    "s": pa.string(),
    "ls": pa.large_string(),
    "sd": pa.dictionary(pa.int8(), pa.string()),
    "b": pa.binary(),
    "fb": pa.binary(3),
    "day": pa.date32(),
    "ts_ms": pa.timestamp("ms"),
    "ts_us": pa.timestamp("us", "UTC"),
    "ts_zone": pa.timestamp("us", "Europe/Paris"),
    "ts_ns": pa.timestamp("ns"),
    "t_ms": pa.time32("ms"),
    "t_us": pa.time64("us"),
    "t_ns": pa.time64("ns"),
    "span": pa.duration("us"),
    "in": pa.struct([("x", pa.int16()), ("name", pa.string()), ("f", pa.float64())]),
}
_DAY = 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_YEARS_S = (-62_135_596_800, 253_402_300_799)  # the years 1 to 9999
_TEXTS = ["", "a", "ab", "abc", "abd", "ab\0", "a%", "a_c", "\\", "it's", "é", "éa", "z\U0001f600", "\uffff", "AB\nC"]
_LONG_TEXTS = ["x" * 64, "x" * 64 + "a", "x" * 70, "é" * 40, "\U0010ffff" * 17, "\U0010ffff" * 16 + "a", "\ud7ff" * 22]
_BYTES = [b"", b"\0", b"a", b"ab", b"\x7f", b"\x80", b"\xff", b"\xff\0", b"\xff\xff", b"\xff" * 64, b"\xff" * 70]
_LONG_BYTES = [b"\xff" * 64 + b"a", b"a" * 63 + b"\xff" * 9, b"a" * 64, b"a" * 80, b"\x80" * 66]
_FLOATS = [0.0, -0.0, 1.0, -1.5, 0.1, 2.5, 65504.0, -65504.0, float("inf"), float("-inf"), 3.0]
_WIDE_FLOATS = [1e300, -1e300, 5e-324, 16777217.0, 2.0**63, 2.0**53, 0.30000000000000004]


def palette(kind: pa.DataType, rng: random.Random) -> list:
    """About a dozen values of a type, ascending, without NaN; temporal ones as counts of their unit."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return [False, True]
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        low, high = ends_of(kind)
        middle = rng.randint(low, high) if rng.random() < 0.3 else rng.randint(max(low, -9), min(high, 60))
        reach = rng.choice([6, 40, 3 * 10**9])
        values = {min(high, max(low, middle + rng.randint(-reach, reach))) for _ in range(9)}
        return sorted(values | set(rng.sample([low, low + 1, high - 1, high], rng.randint(0, 2))))
    if pa.types.is_floating(kind):
        listed = _FLOATS + (_WIDE_FLOATS if kind.bit_width == 64 else [])
        near = [rng.randint(-8, 8) / rng.choice([1, 2, 10]) for _ in range(6)]
        rounded = np.array(near + rng.sample(listed, 7), dtype=f"f{kind.bit_width // 8}")
        return sorted(rounded.astype(float).tolist())
    if pa.types.is_decimal(kind):
        end = 10**kind.precision - 1
        unscaled = {rng.randint(-300, 300) for _ in range(8)} | {rng.choice([end, -end, 0, 10])}
        unscaled |= {rng.randint(-end, end)} if rng.random() < 0.5 else set()
        return sorted(decimal_of(value, kind.scale) for value in unscaled if abs(value) <= end)
    if pa.types.is_binary(kind):
        return sorted(
            {*rng.sample(_BYTES, 6), *rng.sample(_LONG_BYTES, 3), *(rng.randbytes(rng.randint(1, 3)) for _ in range(3))}
        )
    if pa.types.is_fixed_size_binary(kind):
        listed = [b"\0\0\0", b"a\0\0", b"abc", b"\xff\xff\xff", b"\xff\xff\0", b"\x7f\x80\x81"]
        return sorted({*rng.sample(listed, 4), *(rng.randbytes(kind.byte_width) for _ in range(5))})
    texts = {"".join(rng.choices("ab%_\0é", k=rng.randint(1, 4))) for _ in range(4)}
    return sorted({*rng.sample(_TEXTS, 7), *rng.sample(_LONG_TEXTS, 3), *texts}, key=str.encode)


def ends_of(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest count that a type of integers or times has here."""
    if pa.types.is_date(kind):
        return _YEARS_S[0] // _DAY, _YEARS_S[1] // _DAY
    if pa.types.is_time(kind):
        return 0, _DAY * _PER_SECOND[kind.unit]  # 24:00:00 is one
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return _YEARS_S[0] * _PER_SECOND[kind.unit], _YEARS_S[1] * _PER_SECOND[kind.unit]
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def decimal_of(unscaled: int, scale: int) -> Decimal:
    return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


def group_values(kind: pa.DataType, name: str, palettes: dict, count: int, rng: random.Random) -> list:
    if pa.types.is_struct(kind):
        inner = {f.name: group_values(f.type, f"{name}.{f.name}", palettes, count, rng) for f in kind}
        rows = [dict(zip(inner, values, strict=True)) for values in zip(*inner.values(), strict=True)]
        return _with_gaps(rows, rng)
    values = palettes[name]
    start = rng.randrange(len(values))
    window = values[start : start + rng.choice([1, 1, 2, 3, 4, len(values)])]
    drawn = rng.choices(window, k=count)
    if pa.types.is_floating(kind):
        share = rng.choice([0, 0, 0, 0.3, 1])
        drawn = [float("nan") if rng.random() < share else value for value in drawn]
    return _with_gaps(drawn, rng)


def _with_gaps(values: list, rng: random.Random) -> list:
    share = rng.choice([0, 0, 0, 0, 0.3, 0.3, 1])
    return [None if share and rng.random() < share else value for value in values] if share else values
