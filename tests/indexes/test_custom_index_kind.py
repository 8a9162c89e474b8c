"""Kinds of index share one protocol: a kind that only these tests know is built, kept, asked and merged as they are."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skipstone as ss
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_strategies import live_paths
from skipstone import col
from skipstone.engine.indexes import protocol as kinds
from skipstone.engine.indexes.columns import checked_options, column_ids
from skipstone.engine.indexes.probe_results import ProbeResult
from skipstone.engine.indexes.protocol import Built, Job, ProbedFiles
from skipstone.engine.predicates import ANY, FALSE, TRUE, Term, terms_of
from skipstone.engine.state import IndexState, Run
from skipstone.engine.state.paths import run_path
from skipstone.engine.state.runs import reading_run, written_as
from skipstone.hfile_like import KeyLayout, SortedFileWriter

KEYS = KeyLayout([("file", 8)])
SCHEMA = pa.schema([("x", pa.int64()), ("p", pa.int32())])
MASKS = pa.schema([("mask", pa.int64())])


class LastDigit:
    """For each file, the last digits that an integer column has: bit d of a mask, bit 10 for null. A file without a
    value that ends in 7 has none that is 17, and none that is not unlike it."""

    name = "last_digit"
    is_compound = False
    speaks_of_logs = False

    def define(self, instant, columns: Sequence[str], maintain: str, options: dict[str, Any]) -> list[IndexState]:
        checked_options(self.name, options, [])
        return [
            IndexState(0, self.name, (i,), {}, maintain) for i, _ in column_ids(instant, columns, pa.types.is_integer)
        ]

    def build(self, table: ss.Table, index: IndexState, files: pa.Table, job: Job) -> Built:
        column = table.instant.path_of(index.columns[0])
        path = run_path(job.transaction, "digits")
        job.leftovers.add(table.index_storage, path)
        masks, left_out = {}, []
        for row in files.select(["file_id", "path"]).to_pylist():
            try:
                values = pq.read_table(Path(table.location, row["path"]), columns=[column], partitioning=None)[column]
                masks[row["file_id"]] = sum({1 << (10 if v is None else abs(v) % 10) for v in values.to_pylist()})
            except (OSError, KeyError):
                left_out.append(row["file_id"])
        ids = np.array(sorted(masks), dtype=np.uint64)
        with (
            table.index_storage.create(path) as sink,
            SortedFileWriter(sink, schema=MASKS, metas=written_as(path)) as w,
        ):
            w.write(KEYS.encode(file=ids), pa.table({"mask": pa.array([masks[i] for i in ids.tolist()], pa.int64())}))
        return Built((Run(path, w.size_bytes, w.num_entries, (1, table.version)),), left_out)

    def commit(self, index: IndexState, work) -> IndexState:
        return index  # what a commit brings is not covered

    def merge(self, index: IndexState, work) -> IndexState:
        if len(index.runs) < 2:
            return index
        path = work.writing.path(f"digits{index.id}")
        known = {}
        for run in index.runs:
            known.update(self._masks(work.snapshot.readers, run))
        ids = np.array(sorted(known), dtype=np.uint64)
        storage = work.writing.storage
        with storage.create(path) as sink, SortedFileWriter(sink, schema=MASKS, metas=written_as(path)) as w:
            w.write(KEYS.encode(file=ids), pa.table({"mask": pa.array([known[i] for i in ids.tolist()], pa.int64())}))
        segments = (index.runs[0].segments[0], index.runs[-1].segments[1])
        return replace(index, runs=(Run(path, w.size_bytes, w.num_entries, segments),))

    def is_current(self, instant, index: IndexState) -> bool:
        return True

    def renewed(self, instant, index: IndexState) -> IndexState:
        return index

    def fine_paths(self, readers, run: Run) -> set[str]:
        return set()

    def probes(self, snapshot, bound, indexes: Sequence[IndexState], damaged: Sequence[str]) -> list:
        found = []
        for index in indexes:
            column = snapshot.instant.path_of(index.columns[0])
            sought = [term for term in terms_of(bound) if isinstance(term, Term) and term.column == column]
            sought = [term for term in sought if term.op in ("=", "in", "!=", "is_null")]
            if sought:
                found.append(DigitsProbe(self, index, column, sought))
        return found

    @staticmethod
    def _masks(readers, run: Run) -> dict[int, int]:
        with reading_run(run):
            table = readers.reader(run).scan_table()
            ids = KEYS.decode(table.column("key"))["file"].tolist()
            return dict(zip(ids, table.column("mask").to_pylist(), strict=True))


@dataclass
class DigitsProbe:
    kind: LastDigit
    index: IndexState
    on: str
    terms: list[Term]
    step: str = "digits"
    note: str = ""
    is_expensive: bool = False

    @property
    def label(self) -> str:
        return f"last_digit({self.on})"

    @property
    def parts(self) -> Collection:
        return self.terms

    def run(self, files: ProbedFiles) -> ProbeResult:
        ids, covered = files.ids, files.covered_by(self.index)
        masks: dict[int, int] = {}
        for run in self.index.runs:
            if run.path not in files.damaged:
                masks.update(self.kind._masks(files.snapshot.readers, run))
        spoken = covered & np.array([i in masks for i in ids.tolist()], dtype=bool)
        outcomes = {}
        for term in self.terms:
            wanted = sum({1 << (abs(v) % 10) for v in term.values.to_pylist()}) if len(term.values) else 1 << 10
            sets = np.full(len(ids), ANY, dtype=np.uint8)
            for at, number in enumerate(ids.tolist()):
                if spoken[at] and not masks[number] & wanted:
                    sets[at] = ANY & ~(FALSE if term.op == "!=" else TRUE)
            outcomes[term] = sets
        return ProbeResult(outcomes, spoken)


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    kinds.register(LastDigit())
    yield
    kinds.forget("last_digit")


def _file(root: Path, name: str, values: list[int | None]) -> str:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": pa.array(values, pa.int64())}), path)
    return name


def _lake(root: Path) -> ss.Table:
    _file(root, "p=1/a.parquet", [10, 23, 51])
    _file(root, "p=1/b.parquet", [14, 24, None])
    return ss.create(root)


def test_it_is_made_named_asked_and_dropped_as_the_others(tmp_path: Path) -> None:
    table = _lake(tmp_path)
    table.create_index("x", kind="last_digit")
    told = table.indexes().to_pylist()[-1]
    assert (told["name"], told["files_covered"], told["files_total"]) == ("last_digit(x)", 2, 2)
    plan = table.scan(col("x") == 21)  # within the bounds of both
    assert plan.files().column("path").to_pylist() == ["p=1/a.parquet"]
    assert "last_digit(x)" in plan.explain()
    assert table.scan("x IS NULL").files().column("path").to_pylist() == ["p=1/b.parquet"]
    assert table.scan("x = 21 OR x = 14").files().num_rows == 2
    with pytest.raises(ss.SkipstoneError, match="has a last_digit index already"):
        table.create_index("x", kind="last_digit")
    with pytest.raises(ss.SkipstoneError, match="fpp= means nothing to a last_digit index"):
        table.create_index("x", kind="last_digit", fpp=0.1)
    with pytest.raises(ss.SchemaError):
        table.create_index("p", kind="last_digit")
    table.drop_index("x", kind="last_digit")
    assert table.scan(col("x") == 21).files().num_rows == 2


def test_what_it_does_not_cover_may_match_until_it_is_refreshed_or_optimized(tmp_path: Path) -> None:
    table = _lake(tmp_path)
    table.create_index("x", kind="last_digit")
    for at, renew in enumerate((lambda: table.refresh_index("x", kind="last_digit"), table.optimize)):
        with table.transaction() as tx:
            tx.add_files([_file(tmp_path, f"p=2/c{at}.parquet", [5, 67])])
        assert table.scan(col("x") == 21).files().num_rows == 2, "the new file is not known to lack it"
        older = table.version
        renew()
        assert table.scan(col("x") == 21).files().num_rows == 1
        assert ss.open(tmp_path, version=older).scan(col("x") == 21).files().num_rows == 2
    assert len(table.handle.instant.indexes[-1].runs) == 1, "optimize merged them"
    made = table.version
    assert table.optimize() == made
    assert table.verify(deep=True) == []


def test_one_that_nobody_knows_prunes_nothing_and_stays(tmp_path: Path) -> None:
    table = _lake(tmp_path)
    table.create_index("x", kind="last_digit")
    kinds.forget("last_digit")
    try:
        opened = ss.open(tmp_path)
        assert opened.scan(col("x") == 21).files().num_rows == 2
        with opened.transaction() as tx:
            tx.add_files([_file(tmp_path, "p=1/d.parquet", [9, 30])])
        opened.optimize()
        opened.clean(retain_versions=1)
        with pytest.raises(ss.SkipstoneError, match="no index kind 'last_digit'"):
            opened.refresh_index("x", kind="last_digit")
    finally:
        kinds.register(LastDigit())
    again = ss.open(tmp_path)
    assert again.scan(col("x") == 21).files().column("path").to_pylist() == ["p=1/a.parquet", "p=1/d.parquet"]


def test_a_damaged_run_of_it_says_nothing(tmp_path: Path) -> None:
    table = _lake(tmp_path)
    table.create_index("x", kind="last_digit")
    run = Path(table.handle.index_storage.root, table.handle.instant.indexes[-1].runs[0].path)
    table.handle.forget()
    run.write_bytes(run.read_bytes()[:-7])
    with pytest.warns(UserWarning, match="damaged"):
        assert ss.open(tmp_path).scan(col("x") == 21).files().num_rows == 2
    with pytest.raises(ss.CorruptionError):
        ss.open(tmp_path, strict=True).scan(col("x") == 21).files()


def test_a_build_publishes_what_it_has_and_a_killed_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that takes long publishes in parts; killed, the parts that were published are kept."""
    root = tmp_path / "lake"
    rng = np.random.default_rng(0)
    for at in range(7):
        _file(root, f"p=1/{at}.parquet", rng.integers(0, 1 << 40, 50).tolist())
    table = ss.create(root)
    monkeypatch.setattr(kinds, "PUBLISH_S", 0.0)
    calls = 0

    def dies(step: str, done: int, total: int) -> None:
        nonlocal calls
        calls += "bytes" not in step
        if calls == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        table.create_index("x", kind="bloom", progress=dies)
    opened = ss.open(root)
    told = opened.indexes().to_pylist()[-1]
    assert (told["files_covered"], told["files_total"]) == (3, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened.refresh_index("x", kind="bloom")
    told = opened.indexes().to_pylist()[-1]
    assert (told["files_covered"], told["files_total"]) == (7, 7)
    for path in live_paths(opened):
        value = pq.read_table(root / path, partitioning=None)["x"][11].as_py()
        assert path in opened.scan(col("x") == value).files().column("path").to_pylist()
    assert opened.verify(deep=True) == []


@settings(max_examples=examples(4, 400))
@given(
    files=st.lists(st.lists(st.none() | st.integers(-40, 40), min_size=1, max_size=5), min_size=1, max_size=5),
    later=st.lists(st.lists(st.none() | st.integers(-40, 40), min_size=1, max_size=5), max_size=3),
    is_refreshed=st.booleans(),
    value=st.integers(-40, 40),
)
def test_it_never_loses_a_row(files: list, later: list, is_refreshed: bool, value: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for at, values in enumerate(files):
            _file(root, f"p={at % 2}/{at}.parquet", values)
        table = ss.create(root)
        table.create_index("x", kind="last_digit")
        for at, values in enumerate(later):
            with table.transaction() as tx:
                tx.add_files([_file(root, f"p=0/later{at}.parquet", values)])
        if is_refreshed:
            table.refresh_index("x", kind="last_digit")
        every = [v for values in (*files, *later) for v in values]
        for where, expected in (
            (f"x = {value}", [v for v in every if v == value]),
            (f"x != {value}", [v for v in every if v is not None and v != value]),
            (f"NOT (x = {value} OR p = 7)", [v for v in every if v is not None and v != value]),
            (f"x IN ({value}, 7) AND x IS NOT NULL", [v for v in every if v in (value, 7)]),
            ("x IS NULL", [v for v in every if v is None]),
        ):
            found = table.scan(where).to_table().column("x").to_pylist()
            assert sorted(found, key=repr) == sorted(expected, key=repr), where
