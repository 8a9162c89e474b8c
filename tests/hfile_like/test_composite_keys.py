"""Composite keys: order by bytes is order by fields."""

import numpy as np
import pyarrow as pa
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from skipstone.errors import CorruptionError, InvalidArgumentError
from skipstone.hfile_like import KeyLayout

LAYOUT = KeyLayout([("kind", 1), ("column", 3), ("partition", 4), ("sequence", 8)])


@settings(max_examples=examples(13))
@given(widths=st.lists(st.integers(1, 8), min_size=1, max_size=4), data=st.data())
def test_keys_order_as_their_fields_and_come_back(widths, data):
    layout = KeyLayout([(f"f{i}", w) for i, w in enumerate(widths)])
    row = st.tuples(*(st.integers(0, (1 << 8 * w) - 1) | st.integers(0, 3) for w in widths))
    rows = sorted(data.draw(st.lists(row, max_size=20)))
    columns = {f"f{i}": np.array([r[i] for r in rows], dtype=np.uint64) for i in range(len(widths))}
    keys = layout.encode(**columns)
    assert keys.to_pylist() == [b"".join(v.to_bytes(w, "big") for v, w in zip(r, widths, strict=True)) for r in rows]
    assert keys.to_pylist() == sorted(keys.to_pylist())
    for decoded in (layout.decode(keys), layout.decode(pa.chunked_array([keys, keys[:0]]))):
        for name, column in columns.items():
            assert decoded[name].tolist() == column.tolist()
    assert layout.decode(keys[1:])["f0"].tolist() == columns["f0"][1:].tolist()


def test_integers_stand_for_every_row():
    keys = LAYOUT.encode(kind=1, column=np.array([2, 3]), partition=4, sequence=np.int64(5))
    assert keys.to_pylist() == [LAYOUT.prefix(kind=1, column=c, partition=4, sequence=5) for c in (2, 3)]
    assert LAYOUT.encode(kind=1, column=2, partition=3, sequence=4).to_pylist()[0][:1] == b"\x01"
    assert LAYOUT.prefix() == b""
    assert LAYOUT.prefix(column=7, kind=1) == b"\1\0\0\7"
    assert LAYOUT.width_bytes == 16
    kinds = {"kind": np.uint8, "column": np.uint32, "partition": np.uint32, "sequence": np.uint64}
    assert {name: array.dtype for name, array in LAYOUT.decode(keys).items()} == kinds


def test_what_does_not_fit_is_refused():
    for columns in ({"kind": 256}, {"kind": -1}, {"kind": np.array([0, 256])}, {"kind": np.array([-1])},
                    {"kind": np.array([0.5])}, {"kind": np.array([1]), "column": np.array([1, 2])},
                    {"kind": np.array([[1]])}):  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            LAYOUT.encode(**({"kind": 1, "column": 1, "partition": 1, "sequence": 1} | columns))
    with pytest.raises(InvalidArgumentError, match="takes the fields"):
        LAYOUT.encode(kind=1)
    with pytest.raises(InvalidArgumentError, match="prefix"):
        LAYOUT.prefix(column=1)
    for fields in ([], [("a", 1), ("a", 1)], [("a", 0)], [("a", 9)]):
        with pytest.raises(InvalidArgumentError):
            KeyLayout(fields)
    with pytest.raises(CorruptionError):
        LAYOUT.decode(pa.array([b"short"]))
    with pytest.raises(CorruptionError):
        LAYOUT.decode(pa.array([None], pa.binary()))
