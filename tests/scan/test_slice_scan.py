"""File slices against brute force: declared bases and logs, merged as their formats would.

A file group has up to three slices, with bases that are completed, inflight or failed, with logs of whole or partial
rows, logs that compute, delete and rollback blocks, and commits in every state. A slice with one merged row that
matches is kept, with all its live files. Files without rows keep no slice and are not read.
"""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from predicate_strategies import predicates, row_matches

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("f", pa.float64()), ("s", pa.string())])
TABLE_SCHEMA = SCHEMA.append(pa.field("p", pa.int64()))
_VALUES = {
    "a": st.none() | st.integers(-1, 4),
    "b": st.none() | st.integers(-1, 4),
    "f": st.none() | st.sampled_from([-1.0, 0.0, -0.0, 1.5, 3.0, math.nan, math.inf]),
    "s": st.none() | st.sampled_from(["", "a", "ab", "é"]),
}
_INSTANTS = [["1", "2", "3"], ["8", "09", "101"], ["2024", "2024b", "a"], ["", "9x", "é"]]
_STATES = ["completed", "completed", "inflight", "failed", "rolled_back"]
Rows = dict[int, dict]  # by record key


@dataclass
class File:
    """One file of a group: its kind, its rows, and what is declared of it."""

    kind: str
    slice: int
    commit: str | None
    p: int
    declared: dict
    rows: Rows = field(default_factory=dict)
    merge: str | None = None
    deleted: frozenset[int] = frozenset()

    @property
    def path(self) -> str:
        return self.declared["path"]


def live(group: list[File], states: dict[str, str], mode: str = "snapshot") -> list[File]:
    """The files of a group that are read, in the order in which they are merged."""

    def state(file: File) -> str:
        return states.get(file.commit or "", "completed")

    last = max((f.slice for f in group if f.kind == "base" and state(f) == "completed"), default=-1)
    found = [f for f in group if f.slice >= last and state(f) not in ("failed", "rolled_back")]
    found = [f for f in found if f.kind != "base" or state(f) == "completed"]
    if mode == "read_optimized":
        found = [f for f in found if f.kind == "base"]
    return sorted(found, key=lambda f: (f.slice, f.kind != "base"))


def worlds(files: list[File], states: dict[str, str]) -> list[list[dict]] | None:
    """The rows that merged files may give: one list for each choice of which commits in flight are there. None if
    only the format knows."""
    found: list[Rows] = [{}]
    for file in files:
        if file.kind == "log" and file.merge == "custom":
            return None
        after = [_merged(rows, file) for rows in found]
        found = found + after if states.get(file.commit or "") == "inflight" else after
    return [list(rows.values()) for rows in found]


def _merged(rows: Rows, file: File) -> Rows:
    rows = {key: row for key, row in rows.items() if key not in file.deleted}
    for key, row in file.rows.items():
        before = rows.get(key, {}) if file.merge == "partial" else {}
        rows[key] = {**dict.fromkeys(SCHEMA.names), **before, **row, "p": file.p}
    return rows


# -- random groups ----------------------------------------------------------------------------------------------------


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


def _declared(draw: st.DrawFn, rows: Rows, **more) -> dict:
    exact = draw(st.integers(0, 4)) > 0
    row_count = len(rows) if exact else draw(st.integers(0, 6))
    stats = {
        name: _bounds([row.get(name) for row in rows.values()], draw, row_count if not exact else len(rows))
        for name in SCHEMA.names
    }
    if not exact:
        for found in stats.values():
            if found is not None:
                found["null_count"] = None if draw(st.booleans()) else sum(1 for _ in rows)
    return {"size_bytes": 9, "row_count": row_count, "row_counts_exact": exact, "stats": stats, **more}


@st.composite
def groups(draw: st.DrawFn, root: str, number: int) -> list[File]:
    """The files of one group; bases are on disk, the others are only declared."""
    is_alone = draw(st.integers(0, 4)) == 0
    slices = 1 if is_alone else draw(st.integers(1, 3))
    instants = draw(st.sampled_from(_INSTANTS))
    has_instants = slices > 1 or draw(st.booleans())
    commits = [None, *(f"c{i}" for i in range(4))]
    files: list[File] = []
    for at in range(slices):
        said = {} if is_alone else {"file_group": f"g{number // 2}"}  # one name in two partitions: two groups
        said |= {"slice_instant": instants[at]} if has_instants and not is_alone else {}

        def add(kind: str, rows: Rows, at: int = at, said: dict = said, **more) -> None:
            commit = draw(st.sampled_from(commits))
            path = os.path.join(root, f"{number}-{len(files)}")
            declared = {"row_count": 2, "size_bytes": 9}
            if kind in ("base", "log"):
                declared = _declared(draw, rows)
            if kind == "base":
                pq.write_table(pa.Table.from_pylist(list(rows.values()), schema=SCHEMA), path)
                declared["size_bytes"] = os.path.getsize(path)
            declared |= {"path": path, "kind": kind, "commit": commit, "merge": more.get("merge"), **said}
            declared["partition"] = {"p": number % 2}
            files.append(File(kind, at, commit, number % 2, declared, rows, **more))

        if is_alone or draw(st.integers(0, 3)):
            add("base", draw(_rows(SCHEMA.names)))
        for _ in range(0 if is_alone else draw(st.integers(0, 2))):
            kind = draw(st.sampled_from(["whole", "whole", "partial", "custom", "delete", "rollback"]))
            if kind == "delete":
                add(kind, {}, deleted=draw(st.frozensets(st.integers(0, 5), max_size=2)))
            elif kind == "rollback":
                add(kind, {})
            else:
                some = st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True)
                add("log", draw(_rows(draw(some) if kind == "partial" else SCHEMA.names)), merge=kind)
    return files


def table_of(root: str, files: list[File]) -> ss.Table:
    table = ss.create(root, schema=TABLE_SCHEMA, partitioning=["p"])
    names = ["path", "size_bytes", "row_count", *_TYPES]
    declared = {n: pa.array([file.declared.get(n) for file in files], _TYPES.get(n)) for n in names}
    with table.transaction() as tx:
        if files:
            tx.add_files(pa.table(declared))
    return table


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
_TYPES = {
    "stats": _STATS,
    "row_counts_exact": pa.bool_(),
    "partition": pa.struct([("p", pa.int64())]),
    **dict.fromkeys(["kind", "merge", "file_group", "slice_instant", "commit"], pa.string()),
}


def _kept(table: ss.Table, node: object, mode: str = "snapshot") -> set[str]:
    return set(table.scan(node, mode=mode).files().column("path").to_pylist())


# -- what must be true ------------------------------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=examples(5))
def test_a_slice_with_a_merged_row_that_matches_is_kept_whole(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as root:
        lake = [data.draw(groups(root, number)) for number in range(data.draw(st.integers(1, 3)))]
        every = data.draw(st.permutations([file for group in lake for file in group]))
        states = data.draw(st.dictionaries(st.sampled_from(["c0", "c1", "c2", "c3"]), st.sampled_from(_STATES)))
        table = table_of(os.path.join(root, "t"), every)
        for column in data.draw(st.sets(st.sampled_from(SCHEMA.names), max_size=2)):
            table.create_index(column, kind="bloom", fpp=0.1)
        for _ in range(data.draw(st.integers(0, 2))):
            key = data.draw(st.permutations(SCHEMA.names))[: data.draw(st.integers(1, 2))]
            if key not in [index["columns"] for index in table.indexes().to_pylist() if index["kind"] == "secondary"]:
                table.create_index(key, kind="secondary")
        before = table.version
        with table.transaction() as tx:
            tx.set_commit_state(states)
        versions = [(ss.open(table.location, version=before), {}), (table, states)]
        for _ in range(3):
            node = data.draw(predicates(TABLE_SCHEMA))
            for version, known in versions:
                _check(version, lake, known, node)
                _check_bases(version, lake, known, node)


def _check(table: ss.Table, lake: list[list[File]], states: dict[str, str], node: object) -> None:
    plan = table.scan(node)
    kept = set(plan.files().column("path").to_pylist())
    expected, unread = 0, set()
    for group in lake:
        files = live(group, states)
        paths = {file.path for file in files}
        assert kept & {file.path for file in group} in (set(), paths), (node, "a slice is kept whole or not at all")
        possible = worlds(files, states)
        if possible is not None and any(row_matches(node, row) is True for rows in possible for row in rows):
            assert paths <= kept, (node, possible, files)
        if any(file.kind in ("log", "delete") for file in files):
            unread |= paths
        elif possible is not None:
            expected += sum(row_matches(node, row) is True for row in possible[0])
    if kept & unread:
        for ask in (plan.to_table, plan.count):
            try:
                ask()
                raise AssertionError((node, "rows of slices with logs are not read by us"))
            except ss.NotReadableError as error:
                assert set(error.paths) <= unread
    else:
        assert plan.count() == plan.to_table().num_rows == expected, (node, lake)


def _check_bases(table: ss.Table, lake: list[list[File]], states: dict[str, str], node: object) -> None:
    """A read-optimized scan gives the rows of the latest bases, as if nothing else were there."""
    plan = table.scan(node, mode="read_optimized")
    bases = [file for group in lake for file in live(group, states, "read_optimized")]
    rows = [row for file in bases for row in _merged({}, file).values() if row_matches(node, row) is True]
    found = plan.to_table().to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, rows)), (node, lake)
    assert plan.count() == len(rows)
    assert set(plan.files().column("path").to_pylist()) <= {file.path for file in bases}


@given(st.data())
@settings(max_examples=examples(4))
def test_files_without_rows_keep_no_slice(data: st.DataObject) -> None:
    """A table answers as one without the superseded slices, failed commits, and blocks without rows."""
    with tempfile.TemporaryDirectory() as root:
        lake = [data.draw(groups(root, number)) for number in range(data.draw(st.integers(1, 3)))]
        states = data.draw(st.dictionaries(st.sampled_from(["c0", "c1", "c2", "c3"]), st.sampled_from(_STATES)))
        table = table_of(os.path.join(root, "t"), [file for group in lake for file in group])
        with table.transaction() as tx:
            tx.set_commit_state(states)
        left = [file for group in lake for file in live(group, states) if file.kind in ("base", "log")]
        alone = table_of(os.path.join(root, "u"), left)
        for mode in ("snapshot", "read_optimized"):
            for _ in range(3):
                node = data.draw(predicates(TABLE_SCHEMA))
                rows = {file.path for file in left}
                assert _kept(table, node, mode) & rows == _kept(alone, node, mode), (node, mode)
