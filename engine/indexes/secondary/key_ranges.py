"""Which part of a predicate a secondary index can look up, and as which ranges of its keys.

A conjunction of terms is matched to an index column by column: looked-up values (=, <=>, IN, IS NULL) continue with the
next column of its key, a range or a prefix ends it. Of several matching indexes, the order is: the key has exactly the
tested columns, then more of its columns are used, then it contains fewer matching entries. Later ones are used only for
other terms, and for files that the earlier ones do not cover.

An inequality is looked up by its complement: the rows of the value, and of null, in the first column of a key.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ....base.arrays import from_numpy, null_column
from ....base.ordered_keys import VALUE_MARK, OrderedCode, beginning
from ....errors import InvalidArgumentError
from ....hfile_like import prefix_successor
from ...predicates import And, Node, Not, Or, Term


@dataclass(frozen=True)
class Values:
    """The column has one of these values, in its type's class; a null among them means null."""

    values: pa.Array | pa.ChunkedArray


@dataclass(frozen=True)
class Interval:
    """The column is not null, and is between two values of its type's class. None: that end is open, and includes NaN,
    the greatest value. `lower_open`, `upper_open`: the end itself is excluded."""

    lower: pa.Scalar | None = None
    upper: pa.Scalar | None = None
    lower_open: bool = False
    upper_open: bool = False


@dataclass(frozen=True)
class Prefix:
    """The column, of strings or binary values, begins with these bytes."""

    text: bytes


Part = Values | Interval | Prefix


@dataclass(frozen=True)
class KeyRanges:
    """Ranges of keys, ascending and disjoint: from each of `starts` to before its stop."""

    starts: list[bytes]
    stops: list[bytes]

    def __len__(self) -> int:
        return len(self.starts)

    def within(self, first: bytes, last: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the ranges that may contain a key from `first` to `last`, both inclusive."""
        low, high = bisect_right(self.stops, first), bisect_right(self.starts, last)
        return zip(self.starts[low:high], self.stops[low:high], strict=True)


def key_ranges(code: OrderedCode, parts: Sequence[Part]) -> KeyRanges:
    """Return the keys whose first values meet `parts`, one per column. All but the last are Values, and every
    combination is looked up. Raise InvalidArgumentError for other parts, or for values of another class."""
    if not 1 <= len(parts) <= len(code.kinds) or not all(isinstance(part, Values) for part in parts[:-1]):
        raise InvalidArgumentError("only the last column of a look-up may have a range or a prefix")
    equal = [part for part in parts if isinstance(part, Values)]
    leading = _combinations(code, equal) if equal else [b""]
    ends = _ends(code.kinds[len(parts) - 1], parts[-1])
    if ends is None:
        return KeyRanges([], [])
    (lower, is_above), (upper, is_through) = ends
    starts = [_after(key + lower) if is_above else key + lower for key in leading]
    stops = [_after(key + upper) if is_through else key + upper for key in leading]
    nonempty = [i for i, (start, stop) in enumerate(zip(starts, stops, strict=True)) if start < stop]
    return KeyRanges([starts[i] for i in nonempty], [stops[i] for i in nonempty])


def _combinations(code: OrderedCode, parts: Sequence[Values]) -> list[bytes]:
    """Return the keys of every combination, ascending, each once."""
    sizes = [len(part.values) for part in parts]
    total = repeats = math.prod(sizes)
    if not total:
        return []
    columns = []
    for part, size in zip(parts, sizes, strict=True):
        repeats //= size
        picks = np.arange(total) // repeats % size
        columns.append(part.values.take(from_numpy(picks)))
    return sorted(set(code.encode(columns).to_pylist()))


def _ends(kind: pa.DataType, part: Part) -> tuple[tuple[bytes, bool], tuple[bytes, bool]] | None:
    """Return (prefix, True if its keys are excluded) of the lower end, and (prefix, True if its keys are included) of
    the upper end; None if the range is empty."""
    if isinstance(part, Values):
        return (b"", False), (b"", True)
    if isinstance(part, Prefix):
        is_fixed = pa.types.is_fixed_size_binary(kind)
        if is_fixed and len(part.text) > kind.byte_width:
            return None  # otherwise bytes after the value would be compared
        text = VALUE_MARK + part.text if is_fixed else beginning(part.text)
        return (text, False), (text, True)
    ends = []
    for bound in (part.lower, part.upper):
        if bound is not None and not bound.is_valid:
            return None
        ends.append(VALUE_MARK if bound is None else OrderedCode([kind]).encode([pa.repeat(bound, 1)])[0].as_py())
    lower_open = part.lower is not None and part.lower_open
    upper_open = part.upper is not None and part.upper_open
    return (ends[0], lower_open), (ends[1], not upper_open)


def _after(prefix: bytes) -> bytes:
    """Return the least key above every key with this prefix, which is not only bytes of 255."""
    after = prefix_successor(prefix)
    assert after is not None
    return after


VALUES_MAX = 1 << 16  # combinations of values, per query
_SOUGHT = ("=", "<=>", "in", "is_null")
_RANGES = ("<", "<=", ">", ">=")


@dataclass(frozen=True, eq=False)
class IndexMatch:
    """A part of a predicate that an index can look up.

    part             of the predicate: a term, a negated one, or a conjunction of terms, possibly a part of a larger one
    key_parts        the conditions on the first columns of the key
    is_complement    the part is TRUE in all rows except those found
    is_exact         the part is TRUE in all rows found; else it may be. It is TRUE in no other row
    is_whole         the key's columns are exactly the tested columns
    """

    part: Node
    key_parts: tuple[Part, ...]
    is_complement: bool = False
    is_exact: bool = True
    is_whole: bool = False


def matches_of(bound: Node, columns: Sequence[str], *, has_elements: bool = False) -> list[IndexMatch]:
    """Return the parts of a bound predicate that an index on these columns can look up. With `has_elements` the key is
    an element of a list: each term is looked up separately, because another element may meet the next term."""
    return list({fit.part: fit for fit in _fits(bound, columns, has_elements)}.values())


def _fits(node: Node, columns: Sequence[str], each_alone: bool) -> Iterator[IndexMatch]:
    if isinstance(node, And):
        terms = [] if each_alone else [child for child in node.children if isinstance(child, Term)]
        fit = _conjunction(terms, columns)
        if fit is not None:
            yield fit
        for child in node.children:
            if each_alone or not isinstance(child, Term) or _is_negated(child):
                yield from _fits(child, columns, each_alone)
    elif isinstance(node, Or):
        for child in node.children:
            yield from _fits(child, columns, each_alone)
    elif isinstance(node, Term) and not _is_negated(node):
        fit = _conjunction([node], columns)
        if fit is not None:
            yield fit
    else:
        fit = _negation(node, columns[0])
        if fit is not None:
            yield fit


def _conjunction(terms: Sequence[Term], columns: Sequence[str]) -> IndexMatch | None:
    used: list[Term] = []
    parts: list[Part] = []
    is_exact, combinations = True, 1
    for column in columns:
        of_column = [term for term in terms if term.column == column]
        equalities = sorted((term for term in of_column if term.op in _SOUGHT), key=lambda term: len(term.values))
        if equalities:
            values = _values(equalities[0])
            combinations *= max(len(values), 1)
            if combinations > VALUES_MAX:
                break
            used.append(equalities[0])
            parts.append(Values(values))
            continue
        ranges = [term for term in of_column if term.op in _RANGES]
        texts = [term for term in of_column if term.op in ("starts_with", "like") and term.codes and term.codes[0]]
        if ranges:
            lower = _tightest([term for term in ranges if term.op in (">", ">=")], is_lower=True)
            upper = _tightest([term for term in ranges if term.op in ("<", "<=")], is_lower=False)
            parts.append(
                Interval(
                    None if lower is None else lower.values[0],
                    None if upper is None else upper.values[0],
                    lower_open=lower is not None and lower.op == ">",
                    upper_open=upper is not None and upper.op == "<",
                )
            )
            used += [term for term in (lower, upper) if term is not None]
        elif texts:
            longest = max(texts, key=lambda term: len(term.codes[0]))
            parts.append(Prefix(longest.codes[0]))
            used.append(longest)
            is_exact = longest.op == "starts_with"
        break
    if not used:
        return None
    tested = {term.column for term in terms}
    part = used[0] if len(used) == 1 else And(tuple(used))
    return IndexMatch(part, tuple(parts), is_exact=is_exact, is_whole=tested == set(columns))


def _is_negated(term: Term) -> bool:
    return term.op in ("!=", "not in")


def _negation(node: Node, column: str) -> IndexMatch | None:
    """Return the look-up of an inequality, by the rows in which it is not TRUE."""
    if isinstance(node, Term) and _is_negated(node) and node.column == column:
        values = pa.chunked_array([node.values, *null_column(1, node.values.type).chunks])
        return IndexMatch(node, (Values(values),), is_complement=True, is_whole=True)
    if not (isinstance(node, Not) and isinstance(node.child, Term) and node.child.column == column):
        return None
    if node.child.op not in ("<=>", "is_null"):  # these are never NULL
        return None
    return IndexMatch(node, (Values(_values(node.child)),), is_complement=True, is_whole=True)


def _values(term: Term) -> pa.Array | pa.ChunkedArray:
    return null_column(1, term.type) if term.op == "is_null" else term.values


def _tightest(terms: Sequence[Term], *, is_lower: bool) -> Term | None:
    """Return the bound that excludes most, of bounds on one side."""
    if not terms:
        return None
    strict = ">" if is_lower else "<"
    if is_lower:
        return max(terms, key=lambda term: (term.codes[0], term.op == strict))
    return min(terms, key=lambda term: (term.codes[0], term.op != strict))
