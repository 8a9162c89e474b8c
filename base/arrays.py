"""Convert between Arrow and numpy through their buffers.

`pa.array`, `pa.scalar` and `Array.to_numpy` import pandas if it is installed. That takes 0.2 s, which a process that
only looks up a few keys should not pay. So all code that reads uses these functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.ma
import pyarrow as pa
import pyarrow.compute as pc

_NULLS_AT_ONCE = 1 << 17
_TEXTS = frozenset(kind.id for kind in (pa.string(), pa.large_string()))  # `pa.types` needs a call per test
_LARGE = frozenset(kind.id for kind in (pa.large_string(), pa.large_binary()))
_INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_DTYPES = {getattr(pa, name)().id: np.dtype(name) for name in ("bool_", *_INTEGERS, "float32", "float64")}


def from_numpy(values: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """Return an array of numbers or bools [n], for numbers over the same memory; null where not `valid`."""
    buffers = [None if valid is None else _bits(valid)]
    if values.dtype == bool:
        return pa.Array.from_buffers(pa.bool_(), len(values), [*buffers, _bits(values)])
    plain = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(plain.dtype), len(plain), [*buffers, pa.py_buffer(plain)])


def to_numpy(array: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return the numbers or bools of an array, without a copy if possible; the values under nulls are undefined (False
    for bools). Raise TypeError for other types."""
    if isinstance(array, pa.ChunkedArray):
        array = combine(array)
    dtype = _DTYPES.get(array.type.id)
    if dtype is None:
        raise TypeError(f"no numpy form of {array.type}")
    if dtype.kind == "b":
        return _bools(array)
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype, count=len(array), offset=array.offset * dtype.itemsize)


def fixed_rows(array: pa.Array) -> np.ndarray:
    """Return uint8 [n, width]: the bytes of each value of a type of whole bytes, without a copy; the bytes under nulls
    are undefined."""
    count, width = len(array), array.type.byte_width
    buffer = array.buffers()[1]
    if buffer is None or count * width == 0:
        return np.zeros((count, width), dtype=np.uint8)
    return np.frombuffer(buffer, dtype=np.uint8, count=count * width, offset=array.offset * width).reshape(count, width)


def combine(array: pa.ChunkedArray) -> pa.Array:
    """Return one array of a chunked one. Texts beyond 2 GB become the large type, which has 64-bit offsets."""
    if array.num_chunks == 1:
        return array.chunk(0)
    if not array.num_chunks:
        return pa.nulls(0, array.type)
    try:
        return pa.concat_arrays(array.chunks)
    except pa.ArrowInvalid:
        large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(array.type)
        if large is None:
            raise
        return pa.concat_arrays([chunk.cast(large) for chunk in array.chunks])


def take_large(column: pa.ChunkedArray, places: np.ndarray) -> pa.ChunkedArray:
    """Return the values at int64 places, even if the chunks contain more than 2 GB of text, which Arrow would join
    before it takes from several of them."""
    try:
        return column.take(from_numpy(places))
    except pa.ArrowInvalid:
        if column.num_chunks < 2 or not len(places):
            raise
    chunks: list[pa.Array] = []
    for half in np.array_split(places, 2):
        order = np.argsort(half, kind="stable")
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        chunks += take_large(_taken_by_chunk(column, half[order]), back).chunks
    return pa.chunked_array(chunks, column.type)


def _taken_by_chunk(column: pa.ChunkedArray, places: np.ndarray) -> pa.ChunkedArray:
    """Return the values at ascending places, one chunk per source chunk that has some."""
    firsts = offsets_of(np.array([len(chunk) for chunk in column.chunks], dtype=np.int64))
    cuts = np.searchsorted(places, firsts)
    parts = [
        chunk.take(from_numpy(places[low:high] - first))
        for chunk, first, low, high in zip(column.chunks, firsts[:-1], cuts[:-1], cuts[1:], strict=True)
        if low < high
    ]
    return pa.chunked_array(parts, column.type)


def take_rows(rows: pa.Table, places: np.ndarray) -> pa.Table:
    """Return the rows at int64 places: `take_large` of each column."""
    if not rows.num_columns:  # Arrow would return no row
        return pa.table({"": pa.nulls(len(places))}).select([])
    return pa.Table.from_arrays([take_large(column, places) for column in rows.columns], schema=rows.schema)


def valid_mask(array: pa.Array) -> np.ndarray | None:
    """Return booleans, False where null; None if nothing is null."""
    if array.null_count == 0:
        return None
    bits = array.buffers()[0]
    return _bools(array.is_valid()) if bits is None else _unpacked(bits, array.offset, len(array))


def null_as_false(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return booleans with False in place of null."""
    return pc.and_kleene(values.is_valid(), values) if values.null_count else values


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return int64 [n + 1]: where each of some consecutive pieces begins, and where the last ends."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    lengths.cumsum(out=offsets[1:])
    return offsets


def offsets_and_data(array: pa.Array) -> tuple[np.ndarray, memoryview]:
    """Return the buffers of a binary or string array, large or not: int32 or int64 offsets [n + 1] into its bytes,
    relative to the array's own offset."""
    dtype = np.dtype(np.int64 if array.type.id in _LARGE else np.int32)
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        return np.zeros(len(array) + 1, dtype=dtype), memoryview(b"")
    window = np.frombuffer(offsets, dtype=dtype, count=len(array) + 1, offset=array.offset * dtype.itemsize)
    return window, memoryview(b"" if data is None else data)


def binary_array(items: Sequence[bytes], arrow_type: pa.DataType | None = None) -> pa.Array:
    """Return a binary array of some bytes; a large one if they pass 2 GiB. With an `arrow_type`, of that binary or
    string type, large or not: the bytes must be text, and fit it."""
    offsets = offsets_of(np.fromiter(map(len, items), dtype=np.int64, count=len(items)))
    if arrow_type is None:
        arrow_type = pa.large_binary() if offsets[-1] > np.iinfo(np.int32).max else pa.binary()
    if arrow_type.id not in _LARGE:
        offsets = offsets.astype(np.int32)
    return pa.Array.from_buffers(
        arrow_type, len(items), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(items))], 0
    )


def binary_rows(rows: np.ndarray, valid: np.ndarray | None = None) -> pa.BinaryArray:
    """Return rows, uint8 [n, width], as a binary array over the same memory; null where not `valid`. At most 2 GiB."""
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    buffers = [None if valid is None else _bits(valid), pa.py_buffer(offsets), pa.py_buffer(rows.reshape(-1))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def byte_table(values: pa.BinaryArray) -> np.ndarray | None:
    """Return uint8 [n, width] over the memory of binary values of one width; None if they have several widths, or
    there are none."""
    if not len(values):
        return None
    offsets, buffer = offsets_and_data(values)
    width = int(offsets[1] - offsets[0])
    if int(offsets[-1] - offsets[0]) != width * len(values) or (np.diff(offsets) != width).any():
        return None
    table = np.frombuffer(buffer, dtype=np.uint8, count=width * len(values), offset=int(offsets[0]))
    return table.reshape(len(values), width)


def string_array(items: Sequence[str | None]) -> pa.Array:
    """Return a string array of some texts, null where None."""
    stored = binary_array([b"" if item is None else item.encode() for item in items])
    array = stored.view(pa.string() if stored.type == pa.binary() else pa.large_string())
    is_given = np.fromiter((item is not None for item in items), dtype=bool, count=len(items))
    return array if is_given.all() else pc.if_else(from_numpy(is_given), array, pa.nulls(len(array), array.type))


def array_of(values: Sequence, arrow_type: pa.DataType) -> pa.Array:
    """An array of integers, booleans, texts or bytes, null where None."""
    valid = None
    if None in values:
        valid = np.array([value is not None for value in values])
    if arrow_type.id in _DTYPES:
        numbers = values if valid is None else [value or 0 for value in values]
        return from_numpy(np.fromiter(numbers, dtype=_DTYPES[arrow_type.id], count=len(values)), valid)
    items = values if valid is None else [value or b"" for value in values]
    array = binary_array([item.encode() if isinstance(item, str) else item for item in items], arrow_type)
    return array if valid is None else with_nulls(array, valid)


def scalar_of(value: int | str | bytes | None, arrow_type: pa.DataType) -> pa.Scalar:
    """A scalar of a type that `array_of` has."""
    return array_of([value], arrow_type)[0]


def filled(column: pa.Array | pa.ChunkedArray, value: int | bool) -> pa.Array | pa.ChunkedArray:
    """A column of numbers or bools with a value in place of null."""
    return pc.fill_null(column, scalar_of(value, column.type))


def string_pieces(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.StringArray:
    """Return a string array of pieces of UTF-8 text: uint8 [bytes], where each piece begins and how long it is."""
    ends = offsets_of(lengths)
    positions = np.arange(int(ends[-1])) + np.repeat(starts - ends[:-1], lengths)
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data[positions])]
    return pa.Array.from_buffers(pa.string(), len(lengths), buffers, 0)


def repeat_value(value: bytes, count: int, arrow_type: pa.DataType) -> pa.Array:
    """Return an array of one value `count` times."""
    stop = len(value) * count + 1
    dtype = np.int64 if is_large(arrow_type) else np.int32
    offsets = np.arange(0, stop, len(value), dtype=dtype) if value else np.zeros(count + 1, dtype=dtype)
    return pa.Array.from_buffers(arrow_type, count, [None, pa.py_buffer(offsets), pa.py_buffer(value * count)], 0)


def with_nulls(column: pa.Array, valid: np.ndarray) -> pa.Array:
    """Return a column, which has no nulls itself, with nulls where not `valid`."""
    if valid.all():
        return column
    _, offsets, data = column.buffers()
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    if column.offset:
        window, _ = offsets_and_data(column)
        offsets = pa.py_buffer(window)
    return pa.Array.from_buffers(column.type, len(column), [bits, offsets, data], -1)


def read_only(data: memoryview | bytes | np.ndarray) -> np.ndarray:
    """Return the same memory as an array that cannot be written, because kernels are compiled only for that kind; for
    bytes, uint8 [n]."""
    view = data.view() if isinstance(data, np.ndarray) else np.frombuffer(data, dtype=np.uint8)
    view.flags.writeable = False
    return view


def is_large(arrow_type: pa.DataType) -> bool:
    """Return whether a type of strings or bytes has offsets of 64 bits."""
    return arrow_type.id in _LARGE


def is_text(arrow_type: pa.DataType) -> bool:
    """Return whether a type is of strings."""
    return arrow_type.id in _TEXTS


def null_column(count: int, arrow_type: pa.DataType) -> pa.ChunkedArray:
    """Return a column that is all null. It uses the memory of a short one at any length."""
    copies, rest = divmod(count, _NULLS_AT_ONCE)
    nulls = _nulls(arrow_type)
    return pa.chunked_array([*[nulls] * copies, nulls[:rest]], arrow_type)


@cache
def _nulls(arrow_type: pa.DataType) -> pa.Array:
    return pa.nulls(_NULLS_AT_ONCE, arrow_type)


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table of a schema without rows; pyarrow's own fails for extension types."""
    return pa.table([null_column(0, field.type) for field in schema], schema=schema)


@cache
def empty_bytes() -> pa.Scalar:
    """Return b"" as a scalar: the value under null binaries, and the separator for joining without one."""
    return binary_array([b""])[0]


@cache
def string_scalar(value: str) -> pa.Scalar:
    """Return a string as a scalar, for comparing columns with it."""
    return binary_array([value.encode()]).view(pa.string())[0]


def is_utf8(value: object) -> bool:
    """Return whether a value is a string that UTF-8 can encode: no lone surrogate, as of a path of other bytes."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def field_index(schema: pa.Schema, name: str) -> int:
    """Return which field has this name; -1 if none or several have it, as for a name that UTF-8 cannot encode."""
    try:
        return schema.get_field_index(name)
    except UnicodeEncodeError:
        return -1


def _bools(array: pa.BooleanArray) -> np.ndarray:
    if len(array) == 0:
        return np.zeros(0, dtype=bool)
    flags = _unpacked(array.buffers()[1], array.offset, len(array))
    return flags & _unpacked(array.buffers()[0], array.offset, len(array)) if array.null_count else flags


def _unpacked(buffer: pa.Buffer, offset: int, length: int) -> np.ndarray:
    first = offset // 8
    bits = np.frombuffer(buffer, dtype=np.uint8)[first : (offset + length + 7) // 8]
    return np.unpackbits(bits, bitorder="little")[offset - 8 * first :][:length].view(bool)


def _bits(flags: np.ndarray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def ascending_once(numbers: np.ndarray) -> np.ndarray:
    """The numbers, ascending, each once: int [n] to [k]. `np.unique` hashes them, which takes ten times as long for
    numbers that ascend or nearly do."""
    if (numbers[1:] < numbers[:-1]).any():
        numbers = np.sort(numbers)
    is_repeat = numbers[1:] == numbers[:-1]
    return numbers[np.append(True, ~is_repeat)] if is_repeat.any() else numbers


def index_of(stored_ids: np.ndarray, wanted_ids: np.ndarray) -> np.ndarray:
    """For each wanted id, its position among the stored ones (ascending), or -1."""
    if len(stored_ids) == 0:
        return np.full(len(wanted_ids), -1, dtype=np.int64)
    places = np.searchsorted(stored_ids, wanted_ids)
    places[places == len(stored_ids)] = 0
    return np.where(stored_ids[places] == wanted_ids, places, -1)


def big_endian(numbers: np.ndarray, width: int) -> np.ndarray:
    """Return uint8 [n, width]: the low bytes of uint64 [n], the most significant first."""
    return numbers.astype(">u8").view(np.uint8).reshape(len(numbers), 8)[:, 8 - width :]


def from_big_endian(table: np.ndarray) -> np.ndarray:
    """Return the numbers of uint8 [n, width], as `big_endian` wrote them: of the least unsigned type of that width."""
    count, width = table.shape
    native = 1 << (width - 1).bit_length()
    wide = np.zeros((count, native), dtype=np.uint8)
    wide[:, native - width :] = table
    return wide.reshape(-1).view(f">u{native}").astype(f"u{native}")


def take_keys(keys: pa.BinaryArray, places: np.ndarray) -> pa.BinaryArray:
    """Return the keys at int64 places; if all have one width, at the speed of memory."""
    table = byte_table(keys)
    return keys.take(from_numpy(places)) if table is None else binary_rows(table.take(places, axis=0))
