"""`explain`: the steps of a plan, and why files are kept, as a text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base import canon
from ...base.arrays import is_utf8, null_as_false, string_scalar, to_numpy
from ...errors import InvalidArgumentError
from ..indexes.derived import is_list_column, is_usable, names_by_path
from ..predicates import (
    Residual,
    Term,
    can_match,
    columns_of,
    columns_read,
    probe_values,
    residuals,
    terms_of,
    unknowns,
    with_implied,
)
from ..predicates.rows import ENGINES
from ..predicates.sql_allowed import has_low_arrow
from ..state.coverage import is_covered
from ..state.manifest import slices_of
from .file_tasks import FileTask, RowGroups
from .index_answer import index_lines
from .reasons import PartReasons, PruningFacts, Reason, WhyKept, parts_of, reasons_of_part, why_kept
from .row_groups import evidence_in_row_groups, read_fine_rows
from .steps import Step, bytes_text
from .units import Units, units_of

if TYPE_CHECKING:
    from .planning import PlannedScan

_REASONS_SHOWN = 6
_QUARANTINED_SHOWN = 3
_ROW_GROUPS_SHOWN = 8

HEADINGS = ("step", "in", "out", "index", "not indexed", "requests", "read", "ms")


def of_plan(plan: PlannedScan) -> str:
    """The steps as a table, and notes for a person."""
    reasons = kept_lines(plan)
    head = [f"scan of {plan.location} version {plan.instant.version}", f"where {plan.predicate_text}"]
    notes = (f"  {note}" for note in remarks(plan))
    return "\n".join([*head, "", *_table(plan.steps), *notes, *(["", *reasons] if reasons else ())])


def remarks(plan: PlannedScan) -> list[str]:
    """Notes for a person, in addition to the steps."""
    lines = [f"{step.name}: {step.note}" for step in plan.steps if step.note]
    lines += index_lines(plan)
    for residual in residuals(plan.bound):
        hint = ""
        if residual.engine == "duckdb" and has_low_arrow(residual.text):
            hint = " (-> and ->> bind less tightly than AND and =: put (payload->>'key') in parentheses)"
        is_by_texts = residual in plan.pruned.outcomes.of_part
        effect = ", and pruned by its texts" if is_by_texts else _use_of_derived(plan, residual)
        lines.append(f"tested on the rows by {ENGINES[residual.engine]}{effect}: {residual.text}{hint}")
    for part in unknowns(plan.bound):
        lines.append(f"not understood, so it prunes nothing: {part.text} ({part.reason})")
    for index in plan.instant.indexes:
        if not is_usable(plan.instant, index):
            label = f"{index.kind}({', '.join(plan.instant.names_of(index))})"
            lines.append(
                f"{label} is not used: DuckDB {index.options.get('duckdb', '')} built it, and another version may "
                "compute other values: rebuild it with refresh_index()"
            )
    lines += [f"damaged, so it is not used: {path}; verify() says more" for path in plan.damaged]
    if plan.request.changes is not None:
        lines.append(f"the directory changed since the last sync ({plan.request.changes}); sync() commits that")
    if plan.tail is not None and (plan.tail.added or plan.tail.removed):
        lines.append(
            f"the {plan.instant.source['kind']} log has newer commits: {plan.tail.added} files added, which no index "
            f"covers, {plan.tail.removed} removed; sync() commits that"
        )
    lines += [f"quarantined: {one['path']}: {one['reason']}" for one in plan.instant.quarantined[:_QUARANTINED_SHOWN]]
    if len(plan.instant.quarantined) > _QUARANTINED_SHOWN:
        lines.append(f"and {len(plan.instant.quarantined) - _QUARANTINED_SHOWN:,} more files; verify() lists them")
    return lines


def _looked_up(plan: PlannedScan, residual: Residual) -> list[str]:
    """The elements and expressions that are looked up for a part that an engine tests, unless it is below a NOT."""
    looked_up = with_implied(residual, names_by_path(plan.instant))
    is_used = looked_up is not residual and set(terms_of(looked_up)) <= set(terms_of(plan.pruning))
    return columns_of(looked_up) if is_used else []


def _use_of_derived(plan: PlannedScan, residual: Residual) -> str:
    """Whether a part that an engine tests is also looked up in indexes of elements or expressions, else why not."""
    names = names_by_path(plan.instant)
    if looked_up := _looked_up(plan, residual):
        return f", and looked up in the index of {', '.join(looked_up)}"
    indexed = [names[(column,)] for column in residual.columns if (column,) in names]
    if indexed:
        return (
            f", so it prunes nothing; the index of {', '.join(indexed)} serves list_contains, list_has_any, "
            "list_has_all and = ANY with constants that need no cast of the column, but not below NOT"
        )
    lists = [column for column in residual.columns if is_list_column(plan.instant, column)]
    why = f", and no index covers the elements of {', '.join(lists)}" if lists else ""
    return f", so it prunes nothing{why}"


def _table(steps: list[Step]) -> list[str]:
    rows = [HEADINGS, *(cells(step) for step in steps)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    return ["  ".join(_aligned(row, widths)).rstrip() for row in rows]


def _aligned(row: tuple[str, ...], widths: list[int]) -> list[str]:
    names = {0, 3}  # the columns of words; the others are numbers
    padded = enumerate(zip(row, widths, strict=True))
    return [cell.ljust(w) if i in names else cell.rjust(w) for i, (cell, w) in padded]


def cells(step: Step) -> tuple[str, ...]:
    """A step as texts, under HEADINGS."""
    return (
        step.name,
        f"{step.came_in:,}",
        f"{step.went_out:,}",
        step.index or "-",
        f"{step.uncovered:,}" if step.uncovered else "-",
        f"{step.requests:,}",
        bytes_text(step.bytes_read),
        f"{step.elapsed_ms:.1f}",
    )


# -- why --------------------------------------------------------------------------------------------------------------


def part_reasons(plan: PlannedScan) -> list[PartReasons]:
    """Why each kept unit is kept, as each part of the predicate sees it."""
    pruned = plan.pruned
    filtered = {c: pruned.units.every_file(places.run_of >= 0) for c, places in pruned.fine.items()}
    pruning = _facts(plan, pruned.units, filtered, pruned.outcomes.of_term)
    for part, rows in pruned.rows.items():
        covered = pruned.units.every_file(rows.covered)
        for term in [part] if isinstance(part, Residual) else terms_of(part):
            pruning.located[term] = pruning.located[term] | covered if term in pruning.located else covered
    return [reasons_of_part(part, pruning) for part in parts_of(plan.bound)]


def _facts(
    plan: PlannedScan, units: Units, filtered: dict[str, np.ndarray], outcomes: dict[Term, np.ndarray] | None = None
) -> PruningFacts:
    columns = columns_of(plan.bound)
    ids, segments = to_numpy(units.files.column("file_id")), to_numpy(units.files.column("segment"))

    def covered(column: str) -> np.ndarray:
        index = plan.instant.index_of("stats", plan.instant.columns.get(column, 0))
        if index is None or column in plan.instant.partitioning:  # what no index has is not behind in one
            return np.ones(units.count, dtype=bool)
        return units.every_file(is_covered(index.coverage, segments, ids))

    return PruningFacts(
        schema=plan.instant.schema,
        count=units.count,
        about={c: plan.column_bounds(c, units) for c in columns},
        covered={c: covered(c) for c in columns},
        has_custom_merge=units.has_custom_merge,
        filtered=filtered,
        outcomes=outcomes or {},
        looked_up={part: ", ".join(names) for part in residuals(plan.bound) if (names := _looked_up(plan, part))},
    )


def why(plan: PlannedScan) -> list[WhyKept]:
    """The kept files counted by the reason why, the commonest first."""
    pruned = plan.pruned
    count = pruned.units.count
    files = np.bincount(pruned.units.unit_of, minlength=count)
    alone = can_match(pruned.outcomes.of_predicate(plan.pruning, count))
    return why_kept(part_reasons(plan), pruned.only_true, alone, files) if count else []


def kept_lines(plan: PlannedScan) -> list[str]:
    """Return lines: the commonest reasons why files are kept, and what would help. Empty without a predicate."""
    reasons = why(plan)
    if not reasons or reasons[0].reason is Reason.NO_PREDICATE:
        return []
    lines = ["why files are kept"]
    width = len(f"{reasons[0].files:,}")
    for one in reasons[:_REASONS_SHOWN]:
        lines.append(f"  {one.files:>{width},}  {one}")
        advice = _advice(plan, one)
        if advice:
            lines.append(f"  {'':>{width}}  - {advice}")
    if len(reasons) > _REASONS_SHOWN:
        file_count = sum(one.files for one in reasons[_REASONS_SHOWN:])
        lines.append(f"  {file_count:>{width},}  for other reasons: plan.reasons() lists them all")
    return lines


def _advice(plan: PlannedScan, why: WhyKept) -> str:
    """What a person could do about a reason; nothing if nothing helps."""
    term = None if why.part is None else why.part.node
    if not isinstance(term, Term):
        return ""
    column = term.column
    if why.reason is Reason.RANGE_OVERLAPS and column not in plan.instant.partitioning:
        if term.op in ("=", "in", "<=>") and canon.hash_name(term.type) is not None:
            behind = _behind(plan, column)
            if behind:
                return f"the {behind} on {column} does not cover them: refresh_index() does that"
            return f"a Bloom filter on {column} would show which of them can contain the value"
        if 2 * why.files > plan.instant.totals["files"]:
            return f"these are at least half of all files: layout() shows whether sorting by {column} would help"
    if why.reason is Reason.NO_STATISTICS:
        if _has_statistics(plan, column):
            return f"neither footers nor the program that added the files report {column}; files of transactions do"
        return f"a statistics index on {column} would exclude more"
    if why.reason is Reason.NOT_COVERED:
        return f"refresh_index() of the statistics on {column} covers them"
    if why.reason is Reason.NAN_POSSIBLE:
        return "footers do not count NaN; files that a transaction writes have these counts"
    return ""


def _behind(plan: PlannedScan, column: str) -> str:
    """A note about an index that could report which files contain a value but lacks some of the kept files; empty if
    there is none."""
    number, files = plan.instant.columns.get(column), plan.pruned.units.files
    segments, ids = (to_numpy(files.column(name)) for name in ("segment", "file_id"))
    words = {"bloom": "Bloom filter index", "secondary": "secondary index"}
    for index in plan.instant.indexes:
        is_of_it = index.kind in words and index.columns[0] == number
        if is_of_it and not is_covered(index.coverage, segments, ids).all():
            return words[index.kind]
    return ""


def _has_statistics(plan: PlannedScan, column: str) -> bool:
    number = plan.instant.columns.get(column)
    return number is not None and plan.instant.index_of("stats", number) is not None


def of_file(plan: PlannedScan, path: str) -> str:
    """Why one file is, or is not, read: what each part of the predicate proves about it, then its row groups.

    Raises InvalidArgumentError for a path that is no live file's.
    """
    live = plan.snapshot.files()
    row = pc.index(live.column("path"), string_scalar(path)).as_py() if is_utf8(path) else -1
    if row < 0:
        raise InvalidArgumentError(f"{path}: not a file of version {plan.instant.version}")
    place = pc.index(plan.pruned.units.files.column("path"), string_scalar(path)).as_py()
    return "\n".join(_of_skipped(plan, live, row, path) if place < 0 else _of_kept(plan, place, path))


def _of_kept(plan: PlannedScan, place: int, path: str) -> list[str]:
    units = plan.pruned.units
    unit = int(units.unit_of[place])
    task, groups = plan.pairs[place]
    lines = [f"{path}: kept: all of its rows match" if task.all_match else f"{path}: kept"]
    together = int((units.unit_of == unit).sum()) - 1
    if together:
        lines.append(f"  evaluated together with {together} other files of its slice; this is about all of them:")
    elif units.slice_of is not None and (units.slice_of == units.slice_of[unit]).sum() > 1:
        lines.append("  kept and skipped together with the other files of its slice")
    lines += [f"  {one.part}: {one.phrase(unit)}" for one in part_reasons(plan) if not task.all_match]
    if groups.kept is None:
        return [*lines, "  its row groups are not known, so all of it is read"]
    if not groups.kept:
        return [*lines, "  none of its row groups can match, so nothing of it is read"]
    numbers = ", ".join(map(str, groups.kept))
    if task.all_match:
        return [*lines, f"  row groups {numbers} of {groups.total} are read"]
    named = "row group" if len(groups.kept) == 1 else "row groups"
    lines.append(f"  {named} {numbers} of {groups.total} may match")
    return [*lines, *_of_row_groups(plan, task, groups)]


def _of_row_groups(plan: PlannedScan, task: FileTask, groups: RowGroups) -> list[str]:
    """Why the first of a file's row groups are read."""
    fine = read_fine_rows([task], plan.index_storage, plan.context.strict)
    count = len(fine.task)
    columns = columns_of(plan.bound)
    pruning = PruningFacts(
        schema=plan.instant.schema,
        count=count,
        about={c: evidence_in_row_groups(c, [task], plan.context, fine) for c in columns},
        covered={c: np.ones(count, dtype=bool) for c in columns},
        has_custom_merge=np.zeros(count, dtype=bool),
        filtered={c: np.ones(count, dtype=bool) for c in task.filters},
    )
    parts = [reasons_of_part(part, pruning) for part in parts_of(plan.bound)]
    shown = (groups.kept or [])[:_ROW_GROUPS_SHOWN]
    width = len(str(shown[-1]))
    lines = []
    for group, unit in zip(shown, np.searchsorted(fine.row_group, shown).tolist(), strict=True):
        open_parts = [one for one in parts if one.reason(unit) is not Reason.MATCHES_WHOLLY]
        because = "; ".join(f"{one.part}: {one.phrase(unit)}" for one in open_parts) or "every row matches"
        lines.append(f"    {group:>{width}}  {because}")
    more_count = len(groups.kept or []) - len(shown)
    return [*lines, f"    and {more_count:,} more"] if more_count else lines


def _of_skipped(plan: PlannedScan, live: pa.Table, row: int, path: str) -> list[str]:
    """Why a file is not read: its slice is not, it has no rows, its statistics exclude it, or else a filter does."""
    group = live.column("file_group")[row]
    is_it = pc.equal(live.column("path"), string_scalar(path))
    if group.is_valid:
        partition = pc.equal(live.column("partition_id"), live.column("partition_id")[row])
        is_it = pc.or_(is_it, pc.and_(partition, null_as_false(pc.equal(live.column("file_group"), group))))
    files, states = live.filter(is_it), plan.instant.commit_states
    out_of_slice = _out_of_slice(files, path, states, plan.mode)
    if out_of_slice:
        return [f"{path}: skipped: {out_of_slice}"]
    units = units_of(files, states, plan.mode)
    place = pc.index(units.files.column("path"), string_scalar(path)).as_py()
    if place < 0:
        return [f"{path}: skipped: it has no rows"]
    unit, outcomes = int(units.unit_of[place]), plan.statistics_outcomes(units)
    pruning = _facts(plan, units, {}, outcomes.of_term)
    by_filter = bool(can_match(outcomes.of_predicate(plan.pruning, units.count))[unit])
    lines = [f"{path}: skipped: no row of it can match"]
    for one in (reasons_of_part(part, pruning) for part in parts_of(plan.bound)):
        term = one.part.node
        if by_filter and isinstance(term, Term) and term.column in _indexed_columns(plan, "secondary"):
            out_of_slice = "the secondary index has no row of it"
        elif (
            by_filter and isinstance(term, Term) and term.column in _indexed_columns(plan, "bloom") and _is_probed(term)
        ):
            out_of_slice = "the Bloom filter does not contain it"
        elif by_filter and not _indexed_columns(plan, "ngram").isdisjoint(columns_read(one.part.node)):
            out_of_slice = "no block of its rows contains the required texts"
        else:
            out_of_slice = one.phrase(unit)
        lines.append(f"  {one.part}: {out_of_slice}")
    return lines


def _indexed_columns(plan: PlannedScan, kind: str) -> set[str]:
    """The columns in the keys of indexes of a kind."""
    keys = [index.columns for index in plan.instant.indexes if index.kind == kind]
    return {plan.instant.path_of(column) for key in keys for column in key}


def _out_of_slice(files: pa.Table, path: str, states: Mapping[str, str], mode: str) -> str:
    """Why a file of a group is not read, whatever the predicate; nothing if it is."""
    slices, place = slices_of(files, states), pc.index(files.column("path"), string_scalar(path)).as_py()
    if slices.is_dead[place]:
        commit = files.column("commit")[place].as_py()
        return f"it has no live rows: the commit {commit!r} that wrote it is {states[commit]}"
    if not slices.live()[place]:
        return "a later slice of its file group replaced it"
    if not slices.live(mode)[place]:
        return "a read-optimized scan reads only base files"
    return ""


def _is_probed(term: Term) -> bool:
    """True if a filter may have excluded a file by this term."""
    return probe_values(term) is not None and term.op in ("=", "in", "<=>")
