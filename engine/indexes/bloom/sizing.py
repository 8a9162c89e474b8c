"""How large the filters of an index are: what was asked for, or what costs the least bytes.

With an `fpp`, each filter is the smallest that meets it. Without one, each is as large as pays over the life of a file:
its own bytes, and those that `lookups` look-ups read because it said yes all the same. Every look-up asks a task's
filter; where that says yes for nothing, it costs a request and a small row for each file of the task, and those of its
row groups that the fine filters let pass. The fine filters see the look-ups whose value is in the task, which are taken
to be one in ten: for each, the other row groups are read for nothing where theirs say yes, at their bytes in the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....bloom import cheapest_blocks, fpp_of, solve_blocks
from ....errors import InvalidArgumentError, is_integer

LOOKUPS = 100
LOOKUPS_MAX = 10**12
REQUEST_BYTES = 256 << 10
"""What a request takes of the time that bytes take: about as long as so many of them."""

FOUND_SHARE = 0.1
"""Of the look-ups that a task sees, those whose value it holds: only they ask the filters of its row groups."""

TASK_BLOCKS_MAX = (64 << 20) // 32
"""A task's filter that would be larger says yes to everything instead: its files' fine filters answer."""

_FINE_ROW_BYTES = 36
TELLS_NOTHING_FPP = 0.5


@dataclass(frozen=True)
class FilterSizing:
    """What the filters of one index are sized for.

    fpp        how often a row group without the value may be read all the same; None: what costs the least
    lookups    where `fpp` is None: how many look-ups a file sees in its life
    """

    fpp: float | None = None
    lookups: int = LOOKUPS

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> FilterSizing:
        """The sizing that an index's options tell."""
        return cls(options["fpp"], options.get("lookups", LOOKUPS))

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> FilterSizing:
        """What a caller asks for, or InvalidArgumentError."""
        fpp, lookups = given.get("fpp"), given.get("lookups", LOOKUPS)
        if fpp is not None and (isinstance(fpp, bool) or not isinstance(fpp, (int, float)) or not 0 < fpp < 1):
            raise InvalidArgumentError(
                f"fpp is a probability above 0 and below 1, as 0.01, or None for what costs the least, not {fpp!r}"
            )
        if not is_integer(lookups, 1) or lookups > LOOKUPS_MAX:
            raise InvalidArgumentError(
                f"lookups is how many look-ups a file sees in its life, from 1 to {LOOKUPS_MAX:,}, not {lookups!r}"
            )
        if fpp is not None and "lookups" in given:
            raise InvalidArgumentError("lookups= decides the size of filters where no fpp= is asked: give one of them")
        return cls(None if fpp is None else float(fpp), lookups)

    def options(self) -> dict[str, Any]:
        """What an index keeps of it."""
        return {"fpp": self.fpp} if self.fpp is not None else {"fpp": None, "lookups": self.lookups}

    @classmethod
    def told_of(cls, options: Mapping[str, Any]) -> str:
        """The size of an index's filters and its reason, in words."""
        told = cls.of(options).told()
        if options.get("source") != "parquet":
            return told
        return (
            f"copied from the Parquet files, at most as large as their writer made it; of what is written later, {told}"
        )

    def told(self) -> str:
        """The size and its reason, in words, of filters that are made from values."""
        if self.fpp is not None:
            return f"sized for an fpp of {self.fpp:g}, as was asked"
        return f"sized to cost the least bytes: its own, and what {self.lookups:,} look-ups a file read for nothing"

    def fine_blocks(self, keys: int, row_group_bytes: int) -> int:
        """The blocks of a row group's filter, of so many distinct values."""
        if self.fpp is not None:
            return solve_blocks(keys, self.fpp)
        return cheapest_blocks(keys, self.lookups * FOUND_SHARE, row_group_bytes)

    def task_blocks(self, keys: int, false_bytes: float) -> int:
        """The blocks of a task's filter, of so many distinct values; `false_bytes`: see `task_false_bytes`. Where none
        of at most `TASK_BLOCKS_MAX` says anything, 1."""
        if self.fpp is not None:
            blocks = min(solve_blocks(keys, self.fpp), TASK_BLOCKS_MAX)
        else:
            blocks = min(cheapest_blocks(keys, self.lookups, false_bytes), TASK_BLOCKS_MAX)
        return 1 if fpp_of(keys, blocks) > TELLS_NOTHING_FPP else blocks

    def task_false_bytes(self, keys: Sequence[int], blocks: Sequence[int], row_group_bytes: Sequence[int]) -> float:
        """What is read of one file when its task's filter says yes for nothing: for each row group its distinct values,
        its filter's blocks and its bytes."""
        read = sum(fpp_of(n, b) * size for n, b, size in zip(keys, blocks, row_group_bytes, strict=True))
        return REQUEST_BYTES + _FINE_ROW_BYTES * len(blocks) + read
