"""When runs are merged: one policy for the manifest and for every kind of index.

A new run takes in every run before it that has less than `RATIO` times the entries gathered so far. So each run that
stays is at least that much larger than the next, their number grows with the logarithm of the entries, and an entry is
rewritten a logarithmic number of times. (One cumulative delta, as RFC-15 has it, rewrites itself at every commit.)

What one commit may rewrite is bounded; larger runs wait for `optimize`, which rewrites the oldest run only where the
others have grown to a share of it, or where that share of it is obsolete. See docs/decisions/commits.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RATIO = 4
LEVELS_MAX = 12
OLDEST_SHARE = 8


@dataclass(frozen=True)
class MergePolicy:
    """The bounds of one kind of runs.

    commit_bytes   a commit may rewrite so many bytes
    commit_share   or so many times the bytes that it adds, where that is more
    levels_max     the commit that would leave more runs merges the newest, whatever it costs; None for no such bound
    small_bytes    a run of at most so many bytes is rewritten whenever that leaves fewer runs, or less in them
    """

    commit_bytes: int
    commit_share: int = 4
    levels_max: int | None = LEVELS_MAX
    small_bytes: int = 0

    def first_merged(self, levels: Sequence[tuple[int, int]], entries: int, size_bytes: int) -> int:
        """The first of the levels, (entries, bytes) each and oldest first, that a new run of so many entries and bytes
        takes in; their number, if it takes in none."""
        first, allowed = len(levels), max(self.commit_bytes, self.commit_share * size_bytes)
        rewritten = size_bytes
        while first > 0:
            level_entries, level_bytes = levels[first - 1]
            is_cheap = level_entries < RATIO * entries and rewritten + level_bytes <= allowed
            if not is_cheap and (self.levels_max is None or first < self.levels_max):
                break
            first -= 1
            entries, rewritten = entries + level_entries, rewritten + level_bytes
        return first

    def keeps_oldest(self, sizes_bytes: Sequence[int]) -> bool:
        """Whether, of runs to be merged, oldest first, the oldest is too large beside the others to be rewritten."""
        return sizes_bytes[0] > max(self.small_bytes, OLDEST_SHARE * sum(sizes_bytes[1:]))

    def is_obsolete(self, size_bytes: int, count: int, removed: int) -> bool:
        """Whether a run of `count` files, of which `removed` are not live, is worth rewriting for that alone."""
        return removed > 0 and (size_bytes <= self.small_bytes or OLDEST_SHARE * removed >= count)
