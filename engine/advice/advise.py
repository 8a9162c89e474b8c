"""Which indexes to try for some queries, what each would save, and in which order to name them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from ...base.caching import cached_property
from ...errors import InvalidArgumentError, SkipstoneError, is_integer
from .. import html
from ..handle import Handle
from ..indexes.derived import indexed_name, is_list_column
from ..indexes.kind import kind_named, kind_or_none
from ..parquet.leaves import leaf_type, leaf_types
from ..predicates import And, Node, Residual, Term, columns_of, columns_read, residuals, terms_of, with_implied
from ..predicates.required_texts import required_of
from ..scan.planning import PlannedScan
from ..scan.request import ScanRequest
from ..scan.steps import bytes_text
from .queries import Queries, queries_of
from .trial import Kept, Scratch, Trial

if TYPE_CHECKING:
    from ..progress import Progress

_EQUAL = frozenset({"=", "<=>", "in"})
_QUERIES_MAX = 100
_COLUMNS_MAX = 6  # of each kind, those of most queries
_RUNS = 10
_SAVED_MIN = 0.01  # of what the queries read
_SHOWN_MAX = 10


@dataclass(frozen=True)
class Suggestion:
    """One index, and what it would save for the queries.

    kind            "bloom", "secondary", "ngram" or "stats"
    columns         of the index
    queries         how many of the queries would read less with it, each counted as often as it was requested
    files_now, files_then    how many files all queries together read, each counted as often as it was requested: with
                    the indexes that the table has, and with this one as well
    bytes_now, bytes_then    the same in bytes, by row groups and all of their columns
    index_bytes     the size of the index
    build_s         the time of a build in one process like this one
    score           bytes: what ten rounds of all queries save, less the size of the index
    fpp             of a Bloom filter
    ignore_case     of an n-gram index: a query ignores case
    """

    kind: str
    columns: tuple[str, ...]
    queries: int
    files_now: float
    files_then: float
    bytes_now: float
    bytes_then: float
    index_bytes: float
    build_s: float
    score: float
    fpp: float | None = None
    ignore_case: bool = False

    @property
    def name(self) -> str:
        """As "bloom(user_id)"."""
        return f"{self.kind}({', '.join(self.columns)})"

    @property
    def code(self) -> str:
        """The call that builds the index, in Python."""
        named = repr(self.columns[0]) if len(self.columns) == 1 else repr(list(self.columns))
        options = "" if self.fpp is None else f", fpp={self.fpp!r}"
        options += ", ignore_case=True" if self.ignore_case else ""
        return f"table.create_index({named}, kind={self.kind!r}{options})"

    @property
    def saved_share(self) -> float:
        """The share of the bytes that the queries read which is saved, 0 to 1."""
        return 1 - self.bytes_then / self.bytes_now if self.bytes_now else 0.0


@dataclass(frozen=True)
class Advice:
    """The result of `Table.advise`.

    location        of the table
    suggestions     the best first. Each was tried by itself: if two help the same queries, their savings do not add up
    queries         how many queries were read, each counted as often as it was requested
    distinct        how many of them differ
    unread          (text, reason) of each query that could not be read or tried
    files_sampled, files_read, files_total    the files of the sample, those that the queries read, and all
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
        """Return what was tried, in sentences."""
        queries = "query" if self.queries == 1 else "queries"
        text = f"{self.queries:,} {queries}, {self.distinct:,} different, over {self.location}"
        tried = f"tried on {self.files_sampled:,} of the {self.files_read:,} files that these queries read "
        tried += f"({self.files_total:,} in the table)"
        return [text, tried] if self.suggestions else [text, tried, "nothing that was tried would have saved much"]

    def tail(self) -> list[str]:
        """Return what could not be read, in sentences."""
        lines = [f"not read: {text}: {reason}" for text, reason in self.unread[:_SHOWN_MAX]]
        more = len(self.unread) - len(lines)
        return [*lines, f"and {more:,} more that could not be read"] if more else lines

    def _repr_html_(self) -> str:
        return html.page(self.html())

    def html(self) -> str:
        """Return the advice as a part of a page."""
        grid = html.grid(HEADINGS, map(cells, self.suggestions), numbers=HEADINGS[1:])
        return html.lines(self.head()) + (grid if self.suggestions else "") + html.lines(self.tail(), dim=True)


HEADINGS = ("candidate", "saves", "files", "read", "queries", "index", "build")


def cells(one: Suggestion) -> tuple[str, ...]:
    """Return a suggestion as texts, under HEADINGS."""
    return (
        one.name,
        f"{one.saved_share:.1%}",
        f"{one.files_now:,.0f} -> {one.files_then:,.0f}",
        f"{bytes_text(one.bytes_now)} -> {bytes_text(one.bytes_then)}",
        f"{one.queries:,}",
        bytes_text(one.index_bytes),
        f"{one.build_s:,.1f} s",
    )


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
        self.queries: list[tuple[Node, PlannedScan, int]] = []
        ranked = sorted(read.where.items(), key=lambda item: -item[1][1])
        for text, (node, weight) in ranked:
            if len(self.queries) == _QUERIES_MAX:
                read.refuse(text, f"asked less often than {_QUERIES_MAX} others, which were tried")
                continue
            try:
                plan = PlannedScan(replace(ScanRequest.of(handle), scan_log=None), node)
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

    def candidates(self) -> list[tuple[str, tuple[str, ...], dict[str, bool]]]:
        """(kind, columns, options) that may help, of columns that many queries name first."""
        instant, has = self.handle.snapshot.instant, set[tuple[str, tuple[str, ...]]]()
        for index in instant.indexes:
            kind, names = kind_or_none(index.kind), tuple(instant.names_of(index))
            firsts = names[:1] if kind is None or kind.is_compound else names
            has |= {(index.kind, names), *((index.kind, (name,)) for name in firsts)}
        equal = self._ranked(lambda term: term.op in _EQUAL)
        named = [name for name in self._ranked(lambda term: True) if leaf_type(instant.schema, name) is not None]
        called = {name: indexed_name(instant, name) for name in equal}
        chosen: list[tuple[str, tuple[str, ...]]] = []
        chosen += [("stats", (name,)) for name in named if ("stats", (name,)) not in has]
        chosen += [(k, (name,)) for k in ("bloom", "secondary") for name in equal if (k, (called[name],)) not in has]
        chosen += [("secondary", pair) for pair in self._pairs(equal) if ("secondary", pair) not in has]
        texts = [(name, flag) for name, flag in self.texts.items() if ("ngram", (name,)) not in has]
        return [(*one, {}) for one in chosen] + [("ngram", (name,), {"ignore_case": flag}) for name, flag in texts]

    @cached_property
    def _derived(self) -> dict[tuple[str, ...], str]:
        """What `create_index` takes for elements and expressions that the queries name, as `with_implied` takes it."""
        instant = self.handle.snapshot.instant
        names: dict[tuple[str, ...], str] = {(n,): n for n in instant.schema.names if is_list_column(instant, n)}
        for _, plan, _ in self.queries:
            for part in residuals(plan.bound):
                terms = [] if part.implied is None else terms_of(part.implied)
                refs = [term.ref for term in terms if isinstance(term, Term) and term.ref.path[0] == ""]
                names.update((ref.path, ref.name) for ref in refs)
        return names

    def sought(self, plan: PlannedScan) -> Node:
        """The predicate of a plan, and what it implies of derived columns, under their names for `create_index`."""
        return with_implied(plan.bound, self._derived)

    @cached_property
    def texts(self) -> dict[str, bool]:
        """The columns in which queries look for a part of a text, and whether one ignores case."""
        ignore_case: dict[str, bool] = {}
        grams = kind_named("ngram")
        for _, plan, _ in self.queries:
            parts: list[Term | Residual] = [*terms_of(plan.bound), *residuals(plan.bound)]
            for part in parts:
                for name in columns_read(part) if isinstance(part, Residual) or part.op == "like" else ():
                    required = required_of(part, name)
                    if required is not None and grams.can_find(required, ignore_case=True):
                        is_folded = not grams.can_find(required, ignore_case=False)
                        ignore_case[name] = ignore_case.get(name, False) or is_folded
        return dict(list(ignore_case.items())[:_COLUMNS_MAX])

    def _ranked(self, is_meant: Callable[[Term], bool]) -> list[str]:
        """Columns of data with such terms, those of most queries first. Elements and expressions count."""
        counts: dict[str, int] = {}
        keys = set(self.handle.snapshot.instant.partitioning)
        usable = {*leaf_types(self.handle.schema), *self._derived.values()}
        for _, plan, weight in self.queries:
            terms = terms_of(self.sought(plan))
            for name in {term.column for term in terms if isinstance(term, Term) and is_meant(term)}:
                if name not in keys and name in usable:
                    counts[name] = counts.get(name, 0) + weight
        return sorted(counts, key=lambda name: (-counts[name], name))[:_COLUMNS_MAX]

    def _pairs(self, equal: Sequence[str]) -> list[tuple[str, ...]]:
        """Pairs of columns that a query compares with = together."""
        pairs: dict[tuple[str, ...], None] = {}
        for _, plan, _ in self.queries:
            parts = plan.bound.children if isinstance(plan.bound, And) else ()
            columns = {part.column for part in parts if isinstance(part, Term) and part.op in _EQUAL}
            pairs.update(dict.fromkeys(combinations([name for name in equal if name in columns], 2)))
        return list(pairs)[:2]


class _Trials:
    """All candidates, each tried for the queries that name its columns."""

    def __init__(self, workload: _Workload, trial: Trial, scratch: Scratch, progress: Progress | None):
        self._workload, self._trial, self._scratch, self._progress = workload, trial, scratch, progress
        self._now = [trial.kept_now(plan) for _, plan, _ in workload.queries]
        self._weights = [weight for _, _, weight in workload.queries]

    def suggestions(self) -> list[Suggestion]:
        """Return those that save enough."""
        suggestions = []
        candidates = self._workload.candidates()
        for number, (kind, columns, options) in enumerate(candidates):
            if self._progress is not None:
                self._progress("trying candidates", number, len(candidates))
            names_of = columns_read if options else columns_of  # a text may be in a part that an engine tests
            named = [names_of(self._workload.sought(plan)) for _, plan, _ in self._workload.queries]
            touched = [i for i, names in enumerate(named) if not {*columns}.isdisjoint(names)]
            try:
                one = self._indexed(kind, columns, touched, options)
            except SkipstoneError:  # of a type that cannot be indexed so
                continue
            if one.saved_share >= _SAVED_MIN and one.score > 0:
                suggestions.append(one)
        return suggestions

    def _indexed(self, kind: str, columns: tuple[str, ...], touched: list[int], options: dict[str, bool]) -> Suggestion:
        files = self._workload.handle.snapshot.instant.totals["files"]
        fpp = kind_named(kind).advised_options(files * self._scratch.row_groups_a_file).get("fpp")
        ignore_case = options.get("ignore_case", False)
        wanted = {name: value for name, value in {"fpp": fpp, "ignore_case": ignore_case}.items() if value}
        tried = self._scratch.tried(columns, kind, wanted, [self._workload.queries[i][0] for i in touched])
        kept = list(self._now)
        for i, of_query in zip(touched, tried.kept, strict=True):
            kept[i] = {path: min(share, of_query[path]) for path, share in kept[i].items() if path in of_query}
        before, after = self._totals(self._now), self._totals(kept)
        pairs = zip(self._weights, before, after, strict=True)
        helped = sum(weight for weight, (_, bytes_now), (_, bytes_then) in pairs if bytes_then < bytes_now)
        files_now, bytes_now = self._sums(before)
        files_then, bytes_then = self._sums(after)
        index_bytes, build_s = tried.index_bytes * self._trial.table_scale, tried.build_s * self._trial.table_scale
        score = _RUNS * (bytes_now - bytes_then) - index_bytes
        sizes = (files_now, files_then, bytes_now, bytes_then, index_bytes)
        return Suggestion(kind, columns, helped, *sizes, build_s, score, fpp, ignore_case)

    def _totals(self, kept: list[Kept]) -> list[tuple[float, float]]:
        """Return (files, bytes) that each query reads of all files, by what it reads of the sample."""
        scale, sizes = self._trial.scale, self._trial.sizes
        return [(len(one) * scale, sum(share * sizes[path] for path, share in one.items()) * scale) for one in kept]

    def _sums(self, totals: list[tuple[float, float]]) -> tuple[float, float]:
        """Return the files and bytes of all queries, each as often as it was requested."""
        files, size_bytes = np.array(self._weights, dtype=float) @ np.array(totals).reshape(-1, 2)
        return float(files), float(size_bytes)
