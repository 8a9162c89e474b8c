"""Which indexes and orders of rows to try for some queries, what came of each, and in which order to name them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import InvalidArgumentError, SkipstoneError, is_integer
from .. import html
from ..clustering import LINEAR
from ..handle import Handle
from ..indexes.bloom.task_filters import FPP_DEFAULT, FPP_MIN
from ..lakes import DIRECTORY
from ..parquet.leaves import leaf_type, leaf_types
from ..predicates import And, Leaf, Node, columns_of, leaves_of
from ..scan.planning import Planning
from ..scan.request import ScanRequest
from ..scan.steps import bytes_text
from ..views import partitions_view
from .queries import Queries, queries_of
from .trial import Kept, Scratch, Shape, Trial

if TYPE_CHECKING:
    from ..progress import Progress

_EQUAL = frozenset({"=", "<=>", "in"})
_RANGE = frozenset({"=", "<=>", "in", "<", "<=", ">", ">=", "starts_with", "like"})
_QUERIES_MAX = 100
_COLUMNS_MAX = 6  # of each kind, those of most queries
_RUNS = 10
_RUNS = 10
_SAVED_MIN = 0.01  # of what the queries read
_SHOWN_MAX = 10
CLUSTER = "cluster"


@dataclass(frozen=True)
class Suggestion:
    """One index, or one order of rows, and what it would have done for the queries.

    kind            "bloom", "secondary", "stats", or "cluster": the rows of each partition written in another order
    columns         of the index, or to order by; the curve where there are more
    queries         how many of the queries, each as often as it was asked, read less by it
    files_now, files_then    how many files all queries together read, each as often as it was asked: by the indexes
                    that the table has, and with this one beside them
    bytes_now, bytes_then    the same of bytes, by row groups, all of their columns
    index_bytes     what the index would take; 0 for an order of rows
    rewritten_bytes    data that would be written anew; 0 for an index
    build_s         how long a build would take in one process like this; None for an order of rows
    score           bytes: what is saved if all of the queries come ten times, less what is written for it
    code            what does it, in Python; of the rows of a table that follows a log, in words
    """

    kind: str
    columns: tuple[str, ...]
    queries: int
    files_now: float
    files_then: float
    bytes_now: float
    bytes_then: float
    index_bytes: float
    rewritten_bytes: int
    build_s: float | None
    score: float
    code: str

    @property
    def name(self) -> str:
        """As "bloom(user_id)"."""
        return f"{self.kind}({', '.join(self.columns)})"

    @property
    def saved_share(self) -> float:
        """Which share of the bytes that the queries read is saved, 0 to 1."""
        return 1 - self.bytes_then / self.bytes_now if self.bytes_now else 0.0


@dataclass(frozen=True)
class Advice:
    """What `Table.advise` found.

    location        of the table
    suggestions     the best first, each tried by itself: two that help the same queries do not add up
    queries         how many queries were read, each as often as it was asked
    distinct        of them, those that differ
    unread          (text, reason) of what could not be read, or tried
    files_sampled, files_read, files_total    on how many files it was tried, of those that the queries read, of all
    """

    location: str
    suggestions: tuple[Suggestion, ...]
    queries: int
    distinct: int
    unread: tuple[tuple[str, str], ...]
    files_sampled: int
    files_read: int
    files_total: int

    def __repr__(self) -> str:
        return f"<skipstone.Advice of {self.queries:,} queries: {len(self.suggestions):,} suggestions>"

    def __str__(self) -> str:
        rows = [HEADINGS, *map(cells, self.suggestions)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
        grid = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        best = [f"to begin with: {self.suggestions[0].code}"] if self.suggestions else []
        return "\n".join([*self.head(), *(grid if self.suggestions else ()), *best, *self.tail()])

    def head(self) -> list[str]:
        """What it is about, in sentences."""
        queries = "query" if self.queries == 1 else "queries"
        text = f"{self.queries:,} {queries}, {self.distinct:,} different, over {self.location}"
        tried = f"tried on {self.files_sampled:,} of the {self.files_read:,} files that these queries read "
        tried += f"({self.files_total:,} in the table)"
        return [text, tried] if self.suggestions else [text, tried, "nothing that was tried would have saved much"]

    def tail(self) -> list[str]:
        """What could not be read, in sentences."""
        lines = [f"not read: {text}: {reason}" for text, reason in self.unread[:_SHOWN_MAX]]
        more = len(self.unread) - len(lines)
        return [*lines, f"and {more:,} more that could not be read"] if more else lines

    def _repr_html_(self) -> str:
        grid = html.grid(HEADINGS, map(cells, self.suggestions), numbers=HEADINGS[1:])
        return html.page(html.lines(self.head()), grid if self.suggestions else "", html.lines(self.tail(), dim=True))


HEADINGS = ("candidate", "saves", "files", "read", "queries", "index", "build")


def cells(one: Suggestion) -> tuple[str, ...]:
    """A suggestion as texts, under HEADINGS."""
    cost = f"rewrites {bytes_text(one.rewritten_bytes)}" if one.kind == CLUSTER else bytes_text(one.index_bytes)
    return (
        one.name,
        f"{one.saved_share:.1%}",
        f"{one.files_now:,.0f} -> {one.files_then:,.0f}",
        f"{bytes_text(one.bytes_now)} -> {bytes_text(one.bytes_then)}",
        f"{one.queries:,}",
        cost,
        "-" if one.build_s is None else f"{one.build_s:,.1f} s",
    )


def suggested_fpp(row_groups: float) -> float:
    """The largest power of ten, at most the default, at which a look-up reads at most one row group of a table
    unnecessarily."""
    return max(FPP_MIN, min(FPP_DEFAULT, float(f"1e-{math.ceil(math.log10(max(1.0, row_groups)))}")))


def _code(kind: str, columns: tuple[str, ...], source: str, options: Mapping[str, Any]) -> str:
    named = repr(columns[0]) if len(columns) == 1 else repr(list(columns))
    if kind != CLUSTER:
        given = "".join(f", {name}={value!r}" for name, value in options.items())
        return f"table.create_index({named}, kind={kind!r}{given})"
    if source != DIRECTORY:
        return f"rewrite the rows clustered by {', '.join(columns)} with a writer of the {source} table"
    return f"spark_adapter.cluster(spark, path, {named}{', curve=' + repr(LINEAR) if len(columns) == 1 else ''})"


def advise(
    handle: Handle,
    queries: Iterable[object] | None,
    log: str | os.PathLike[str] | None,
    files_max: int,
    progress: Progress | None,
) -> Advice:
    """See `Table.advise`."""
    if not is_integer(files_max, 1):
        raise InvalidArgumentError(f"sample_files= is a number of files, 1 or more, not {files_max!r}")
    read = queries_of(queries, log, handle)
    workload = _Workload(handle, read)
    trial = Trial(handle, [plan for _, plan, _ in workload.queries], files_max)
    suggestions: list[Suggestion] = []
    if workload.queries and trial.sizes:
        with trial.scratch() as scratch:
            workload.leave_out(scratch, read)
            suggestions = _Trials(workload, trial, scratch, progress).suggestions()
    return Advice(
        handle.location,
        tuple(sorted(suggestions, key=lambda one: -one.score)),
        sum(weight for _, _, weight in workload.queries),
        len(workload.queries),
        tuple(read.unread),
        len(trial.sizes),
        len(trial.all_paths),
        handle.snapshot.instant.totals["files"],
    )


class _Workload:
    """The queries that can be tried: (predicate, plan over the table, how often), those asked most often first."""

    def __init__(self, handle: Handle, read: Queries):
        self.handle = handle
        self.queries: list[tuple[Node, Planning, int]] = []
        ranked = sorted(read.where.items(), key=lambda item: -item[1][1])
        for text, (node, weight) in ranked:
            if len(self.queries) == _QUERIES_MAX:
                read.refuse(text, f"asked less often than {_QUERIES_MAX} others, which were tried")
                continue
            try:
                plan = Planning(replace(ScanRequest.of(handle), scan_log=None), node)
                plan.pruned  # noqa: B018
            except SkipstoneError as error:
                read.refuse(text, str(error))
            else:
                self.queries.append((node, plan, weight))

    def leave_out(self, scratch: Scratch, read: Queries) -> None:
        """Names the queries that the sample cannot be asked, and leaves them out."""
        kept = []
        for query in self.queries:
            try:
                scratch.check(query[0])
                kept.append(query)
            except SkipstoneError as error:
                read.refuse(str(query[0]), f"the files that it was to be tried on: {error}")
        self.queries = kept

    def candidates(self) -> list[tuple[str, tuple[str, ...]]]:
        """(kind, columns) that may help, of columns that many queries name first."""
        instant = self.handle.snapshot.instant
        has = {(index.kind, tuple(instant.names_of(index))) for index in instant.indexes}
        stats = {name for kind, names in has for name in names if kind == "stats"}
        filters = {name for kind, names in has for name in names if kind == "bloom"}
        keys = {names[0] for kind, names in has if kind == "secondary"}
        equal = self._ranked(lambda leaf: leaf.op in _EQUAL)
        ranged = self._ranked(lambda leaf: leaf.op in _RANGE)
        named = self._ranked(lambda leaf: True)
        schema = instant.schema
        chosen: list[tuple[str, tuple[str, ...]]] = []
        chosen += [("stats", (name,)) for name in named if name not in stats and leaf_type(schema, name) is not None]
        chosen += [("bloom", (name,)) for name in equal if name not in filters]
        chosen += [("secondary", (name,)) for name in equal if name not in keys]
        chosen += [("secondary", pair) for pair in self._pairs(equal) if ("secondary", pair) not in has]
        orders = [name for name in ranged if leaf_type(schema, name) is not None]
        return [*chosen, *((CLUSTER, (n,)) for n in orders), *((CLUSTER, p) for p in list(combinations(orders, 2))[:1])]

    def _ranked(self, is_meant: Callable[[Leaf], bool]) -> list[str]:
        """Columns of data with such leaves, those of most queries first."""
        counts: dict[str, int] = {}
        keys = set(self.handle.snapshot.instant.partitioning)
        for _, plan, weight in self.queries:
            for name in {leaf.column for leaf in leaves_of(plan.bound) if isinstance(leaf, Leaf) and is_meant(leaf)}:
                if name not in keys and name in leaf_types(self.handle.schema):
                    counts[name] = counts.get(name, 0) + weight
        return sorted(counts, key=lambda name: (-counts[name], name))[:_COLUMNS_MAX]

    def _pairs(self, equal: Sequence[str]) -> list[tuple[str, ...]]:
        """Pairs of columns that a query compares with = at once."""
        pairs: dict[tuple[str, ...], None] = {}
        for _, plan, _ in self.queries:
            parts = plan.bound.children if isinstance(plan.bound, And) else ()
            columns = {part.column for part in parts if isinstance(part, Leaf) and part.op in _EQUAL}
            pairs.update(dict.fromkeys(combinations([name for name in equal if name in columns], 2)))
        return list(pairs)[:2]


class _Trials:
    """All candidates, each tried for the queries that name its columns."""

    def __init__(self, workload: _Workload, trial: Trial, scratch: Scratch, progress: Progress | None):
        self._workload, self._trial, self._scratch, self._progress = workload, trial, scratch, progress
        self._now = [trial.kept_now(plan) for _, plan, _ in workload.queries]
        self._weights = [weight for _, _, weight in workload.queries]
        self._rows: pa.Table | None = None

    def suggestions(self) -> list[Suggestion]:
        """Those that save enough."""
        suggestions = []
        candidates = self._workload.candidates()
        for number, (kind, columns) in enumerate(candidates):
            if self._progress is not None:
                self._progress("trying candidates", number, len(candidates))
            named = [columns_of(plan.bound) for _, plan, _ in self._workload.queries]
            touched = [i for i, names in enumerate(named) if not {*columns}.isdisjoint(names)]
            try:
                one = (self._ordered if kind == CLUSTER else self._indexed)(kind, columns, touched)
            except SkipstoneError:  # of a type that cannot be indexed so
                continue
            if one.saved_share >= _SAVED_MIN and one.score > 0:
                suggestions.append(one)
        return suggestions

    def _indexed(self, kind: str, columns: tuple[str, ...], touched: list[int]) -> Suggestion:
        options = self._options(kind)
        tried = self._scratch.tried(columns, kind, options, [self._workload.queries[i][0] for i in touched])
        then = list(self._now)
        for i, kept in zip(touched, tried.kept, strict=True):
            then[i] = {path: min(share, kept[path]) for path, share in then[i].items() if path in kept}
        files, sizes = zip(*map(self._totals, then), strict=True)
        index_bytes = tried.index_bytes * self._trial.table_scale
        build_s = tried.build_s * self._trial.table_scale
        return self._suggestion(kind, columns, files, sizes, index_bytes, 0, build_s, options)

    def _options(self, kind: str) -> dict[str, Any]:
        """What is passed to `create_index` of that kind."""
        if kind != "bloom":
            return {}
        files = self._workload.handle.snapshot.instant.totals["files"]
        return {"fpp": suggested_fpp(files * self._scratch.row_groups_a_file)}

    def _ordered(self, kind: str, columns: tuple[str, ...], touched: list[int]) -> Suggestion:
        if self._rows is None:
            names = {name for _, plan, _ in self._workload.queries for name in columns_of(plan.bound)}
            self._rows = self._scratch.rows(sorted(names))
        curve = LINEAR if len(columns) == 1 else "hilbert"
        ordered = self._scratch.ordered(columns, curve, self._rows, self._shape())
        files, sizes = map(list, zip(*map(self._totals, self._now), strict=True))
        whole = self._trial.population_bytes
        try:
            for i in touched:
                file_count, share = ordered.kept(self._workload.queries[i][0])
                files[i], sizes[i] = min(files[i], file_count), min(sizes[i], share * whole)
        finally:
            ordered.close()
        return self._suggestion(kind, columns, files, sizes, 0, self._table_bytes, None, {})

    def _totals(self, kept: Kept) -> tuple[float, float]:
        """(files, bytes) that a query reads of all files, by what it reads of the sample."""
        scale = self._trial.scale
        return len(kept) * scale, sum(share * self._trial.sizes[path] for path, share in kept.items()) * scale

    @property
    def _table_bytes(self) -> int:
        return self._workload.handle.snapshot.instant.totals["bytes"]

    def _shape(self) -> Shape:
        snapshot = self._workload.handle.snapshot
        names, view = snapshot.instant.partitioning, partitions_view(snapshot).to_pylist()
        counts = {tuple(row[name] for name in names): row["file_count"] for row in view}
        groups = max(1, round(self._scratch.row_groups_a_file))
        return lambda values: (max(1, counts.get(tuple(values[name] for name in names), 1)), groups)

    def _suggestion(
        self,
        kind: str,
        columns: tuple[str, ...],
        files: Sequence[float],
        sizes: Sequence[float],
        index_bytes: float,
        rewritten_bytes: int,
        build_s: float | None,
        options: Mapping[str, Any],
    ) -> Suggestion:
        now = list(map(self._totals, self._now))
        weights = self._weights
        helped = sum(w for w, (_, size_now), size in zip(weights, now, sizes, strict=True) if size < size_now)
        bytes_now = sum(w * size for w, (_, size) in zip(weights, now, strict=True))
        bytes_then = sum(w * size for w, size in zip(weights, sizes, strict=True))
        return Suggestion(
            kind,
            columns,
            helped,
            sum(w * count for w, (count, _) in zip(weights, now, strict=True)),
            sum(w * count for w, count in zip(weights, files, strict=True)),
            bytes_now,
            bytes_then,
            index_bytes,
            rewritten_bytes,
            build_s,
            _RUNS * (bytes_now - bytes_then) - index_bytes - rewritten_bytes,
            _code(kind, columns, self._workload.handle.instant.source["kind"], options),
        )
