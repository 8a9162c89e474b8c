"""The n-gram index: text -> the blocks of rows in which it may occur. See `format.py` and `grams.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ....errors import InvalidArgumentError
from ...parquet.leaves import leaf_type
from ...predicates import And, Node, Or, Residual, Term
from ...predicates.coerce import is_text
from ...predicates.required_texts import NOTHING, Required, required_of
from ...state import IndexState, Instant
from ...state.snapshot import Snapshot
from ..columns import checked_options, column_ids
from ..kind import BuildContext, BuildResult, IndexKind, Probe
from .format import FORMAT, NAME
from .grams import SHORT, VERSION
from .probe import GramProbe, grams_required

if TYPE_CHECKING:
    from ...handle import Handle
    from ..kind import CommitContext, MergeContext, PartSpec


class NgramKind(IndexKind):
    name = NAME
    joins_runs = True

    def define(
        self, instant: Instant, columns: Sequence[str], maintain: str, options: dict[str, Any]
    ) -> list[IndexState]:
        checked_options(self.name, options, ["ignore_case"])
        ignore_case = options.get("ignore_case", False)
        if not isinstance(ignore_case, bool):
            raise InvalidArgumentError(f"ignore_case= is True or False, not {ignore_case!r}")
        stored = {"ignore_case": ignore_case, "grams": VERSION}
        ids = column_ids(instant, columns, is_text)
        return [IndexState(0, self.name, (number,), stored, maintain) for number, _ in ids]

    def build(self, handle: Handle, index: IndexState, files: pa.Table, job: BuildContext) -> BuildResult:
        from .build import built_grams

        if not self.is_current(handle.instant, index):  # the column is binary now, so no file can be indexed
            return BuildResult((), files.column("file_id").to_pylist())
        return built_grams(handle, index, files, job)

    def part_spec(self, instant: Instant, index: IndexState) -> PartSpec | None:
        from .build import GramPartSpec

        return GramPartSpec(instant.path_of(index.columns[0]), index.options["ignore_case"])

    def commit(self, index: IndexState, work: CommitContext) -> IndexState:
        from .build import committed_grams

        return committed_grams(index, work) if self.is_current(work.after, index) else index

    def merge(self, index: IndexState, work: MergeContext) -> IndexState:
        from ..entry_sorting import with_merged_runs

        return with_merged_runs(index, work, FORMAT)

    def is_current(self, instant: Instant, index: IndexState) -> bool:
        kind = leaf_type(instant.schema, instant.path_of(index.columns[0]))
        return index.options["grams"] == VERSION and kind is not None and is_text(kind)

    def updated_definition(self, instant: Instant, index: IndexState) -> IndexState:
        kind = leaf_type(instant.schema, instant.path_of(index.columns[0]))
        if kind is not None and not is_text(kind):
            return index
        options = {"ignore_case": index.options["ignore_case"]}
        (definition,) = self.define(instant, instant.names_of(index), index.maintain, options)
        return replace(definition, id=index.id)

    def can_find(self, required: Required, ignore_case: bool) -> bool:
        return grams_required(required, ignore_case) != NOTHING

    def probes(
        self, snapshot: Snapshot, bound: Node, indexes: Sequence[IndexState], damaged: Sequence[str]
    ) -> Sequence[Probe]:
        probes = []
        parts = list(dict.fromkeys(_asserted(bound))) if indexes else []
        for index in indexes:
            column, ignore_case = snapshot.instant.path_of(index.columns[0]), index.options["ignore_case"]
            texts = {part: required for part in parts if (required := required_of(part, column)) is not None}
            grams = {part: grams_required(required, ignore_case) for part, required in texts.items()}
            usable = {part: required for part, required in grams.items() if required != NOTHING}
            if usable:
                probes.append(GramProbe(index, column, usable))
            elif texts:
                of_folded = any(grams_required(required, True) != NOTHING for required in texts.values())
                why = (
                    "it distinguishes cases; create it with ignore_case=True"
                    if of_folded
                    else f"no text of {SHORT} bytes or more is required (of numbers 6)"
                )
                note = f"ngram({column}) is not used: {why}"
                probes.append(GramProbe(index, column, texts, note=note, is_expensive=True))
        return probes


def _asserted(node: Node) -> Iterator[Node]:
    """Yield the terms and residuals that are not under a NOT: rows in which one cannot be TRUE may be excluded."""
    if isinstance(node, And | Or):
        for child in node.children:
            yield from _asserted(child)
    elif isinstance(node, Term | Residual):
        yield node


KIND = NgramKind()
