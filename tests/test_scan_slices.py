"""File slices against brute force: files that are only told of, logs over bases, merged as their formats would.

A slice that holds one merged row that matches is kept, with every live file of it; what is skipped holds none.
"""

from __future__ import annotations

import math
import tempfile

import pyarrow as pa
import skipstone as ss
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies_predicates import predicates, row_matches

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
_VALUES = {
    "a": st.none() | st.integers(-1, 4),
    "b": st.none() | st.integers(-1, 4),
    "f": st.none() | st.sampled_from([-1.0, 0.0, -0.0, 1.5, 3.0, math.nan, math.inf]),
    "s": st.none() | st.sampled_from(["", "a", "ab", "é"]),
}
Rows = dict[int, dict]  # by record key


@st.composite
def _rows(draw: st.DrawFn, columns: list[str]) -> Rows:
    keys = draw(st.lists(st.integers(0, 5), max_size=4, unique=True))
    return {key: {name: draw(_VALUES[name]) for name in columns} for key in keys}


def _bounds(values: list, draw: st.DrawFn, row_count: int) -> dict | None:
    """Statistics as a caller gives them: exact, wider, or in part not known. NaN is no bound."""
    if draw(st.integers(0, 3)) == 0:
        return None
    plain = [v for v in values if v is not None and not (isinstance(v, float) and math.isnan(v))]
    wider = draw(st.sampled_from([0, 0, 1]))
    nulls = row_count - sum(v is not None for v in values)
    return {
        "min": _moved(min(plain), -wider) if plain else None,
        "max": _moved(max(plain), wider) if plain else None,
        "null_count": draw(st.sampled_from([nulls, nulls, None])),
        "nan_count": draw(st.sampled_from([sum(v != v for v in values if v is not None), None])),
    }


def _moved(bound: object, by: int) -> object:
    if isinstance(bound, str):
        return "" if by < 0 else bound + "z" * by
    return bound + by  # type: ignore[operator]


def _told(draw: st.DrawFn, path: str, rows: Rows, **more) -> dict:
    exact = draw(st.integers(0, 4)) > 0
    told = len(rows) if exact else draw(st.integers(0, 6))
    stats = {
        name: _bounds([row.get(name) for row in rows.values()], draw, told if not exact else len(rows))
        for name in SCHEMA.names
    }
    if not exact:
        for found in stats.values():
            if found is not None:
                found["null_count"] = None if draw(st.booleans()) else sum(1 for _ in rows)
    return {"path": path, "size_bytes": 9, "row_count": told, "row_counts_exact": exact, "stats": stats, **more}


@st.composite
def slices(draw: st.DrawFn, name: str) -> tuple[list[dict], list[dict] | None]:
    """(files as they are told of, the merged rows; None where only the format knows how they merge)."""
    rows = draw(_rows(SCHEMA.names))
    group = {"file_group": name}
    if draw(st.integers(0, 3)) == 0:
        group = {}
    files = [_told(draw, f"{name}/base", rows, **group)]
    merged: list[dict] | None = None
    state = {key: dict(row) for key, row in rows.items()}
    is_custom = False
    for number in range(draw(st.integers(0, 2)) if group else 0):
        path = f"{name}/log{number}"
        kind = draw(st.sampled_from(["whole", "partial", "custom", "delete", "rollback"]))
        if kind in ("delete", "rollback"):
            files.append({"path": path, "size_bytes": 9, "row_count": 2, "kind": kind, **group})
            gone = draw(st.sets(st.integers(0, 5), max_size=2)) if kind == "delete" else ()
            state = {key: row for key, row in state.items() if key not in gone}
            continue
        columns = (
            SCHEMA.names
            if kind != "partial"
            else draw(st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True))
        )
        changed = draw(_rows(columns))
        files.append(_told(draw, path, changed, kind="log", merge=kind, **group))
        is_custom |= kind == "custom"
        for key, row in changed.items():
            state[key] = {**dict.fromkeys(SCHEMA.names), **state.get(key, {}), **row}
    if not is_custom:
        merged = list(state.values())
    return files, merged


@given(st.data())
@settings(max_examples=settings.default.max_examples * 2)
def test_a_slice_with_a_merged_row_that_matches_is_kept_whole(data: st.DataObject) -> None:
    lake = [data.draw(slices(f"s{number}")) for number in range(data.draw(st.integers(1, 3)))]
    every = [file for files, _ in lake for file in files]
    names = list(dict.fromkeys(name for file in every for name in file))
    kinds = {
        "stats": _STATS,
        "row_counts_exact": pa.bool_(),
        **dict.fromkeys(["kind", "merge", "file_group"], pa.string()),
    }
    told = pa.table({n: pa.array([file.get(n) for file in every], kinds.get(n)) for n in names})
    with tempfile.TemporaryDirectory() as root:
        table = ss.create(root, schema=SCHEMA)
        with table.transaction() as tx:
            tx.add_files(told)
        for _ in range(3):
            node = data.draw(predicates(SCHEMA))
            plan = table.scan(node)
            kept = set(plan.files().column("path").to_pylist())
            expected = 0
            for files, merged in lake:
                paths = {file["path"] for file in files}
                holds = merged is None or any(row_matches(node, row) is True for row in merged)
                assert len(files) == 1 or not kept & paths or paths <= kept, (
                    node,
                    "a slice is kept whole or not at all",
                )
                if merged is not None:
                    expected += sum(row_matches(node, row) is True for row in merged)
                if holds and merged is not None:
                    assert paths <= kept, (node, merged, files)
            try:
                counted = plan.count()
            except ss.NotReadableError:
                continue
            assert counted == expected, (node, lake)


_STATS = pa.struct(
    [
        (
            field.name,
            pa.struct(
                [("min", field.type), ("max", field.type), ("null_count", pa.int64()), ("nan_count", pa.int64())]
            ),
        )
        for field in SCHEMA
    ]
)
