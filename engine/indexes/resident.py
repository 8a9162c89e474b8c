"""Coarse groups kept in memory, for who asks one table much: `open(..., cache="coarse")`.

A group is read whole when it is first asked, if the budget has room for it, and answers without a request from then on.
Where there is none, the group used longest ago makes room, but only one that the last `IDLE_QUESTIONS` questions did
not ask: every question on a column asks all of its groups in turn, and to let go of each before its turn comes would
read everything every time. What finds no room is asked row by row. A run's name is never given twice, so what is kept
is never stale.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from ...hfile_like import SortedFileReader

CACHE_BYTES = 64 << 20
IDLE_QUESTIONS = 8

Name = tuple[str | None, str]  # of the file, of the section


class Resident:
    """The groups kept of one index root; `held_bytes` never passes `budget_bytes`. Threads may share it."""

    def __init__(self, budget_bytes: int):
        self._lock = threading.Lock()
        self._kept: OrderedDict[Name, tuple[np.ndarray | None, int, int]] = OrderedDict()  # rows, bytes, last question
        self._question = 0
        self.budget_bytes = budget_bytes
        self.held_bytes = 0

    def ask(self) -> None:
        """A question begins."""
        with self._lock:
            self._question += 1

    def table(
        self, section: str, reader: SortedFileReader, size_bytes: int, load: Callable[[], np.ndarray]
    ) -> np.ndarray | None:
        """The rows of a group, from memory or from `load`; None where there is no room for them, or while another
        thread reads them."""
        name = (reader.name, section)
        with self._lock:
            if name in self._kept:
                rows, size_bytes, _ = self._kept[name]
                self._kept[name] = rows, size_bytes, self._question
                self._kept.move_to_end(name)
                return rows
            if not self._make_room(size_bytes):
                return None
            self._kept[name] = None, size_bytes, self._question
            self.held_bytes += size_bytes
        try:
            rows = load()
        except BaseException:
            with self._lock:
                self._let_go(name)
            raise
        with self._lock:
            if name in self._kept:
                self._kept[name] = rows, size_bytes, self._question
        return rows

    def set_budget(self, budget_bytes: int) -> None:
        """Another budget from now on."""
        with self._lock:
            self.budget_bytes = budget_bytes
            for name in list(self._kept):
                if self.held_bytes > budget_bytes:
                    self._let_go(name)

    def clear(self) -> None:
        """Lets go of everything."""
        with self._lock:
            self._kept.clear()
            self.held_bytes = 0

    def _make_room(self, size_bytes: int) -> bool:
        room = self.budget_bytes - self.held_bytes
        idle = []
        for name, (_, kept_bytes, last) in self._kept.items():  # the one used longest ago first
            if room >= size_bytes or self._question - last <= IDLE_QUESTIONS:
                break
            idle.append(name)
            room += kept_bytes
        if room < size_bytes:
            return False
        for name in idle:
            self._let_go(name)
        return True

    def _let_go(self, name: Name) -> None:
        found = self._kept.pop(name, None)
        if found is not None:
            self.held_bytes -= found[1]


_lock = threading.Lock()
_roots: dict[str, Resident] = {}


def resident_of(uri: str, budget_bytes: int) -> Resident:
    """What the process keeps of the index root at `uri`, for all of its handles that ask for it: the one that was
    opened last tells the budget."""
    with _lock:
        found = _roots.setdefault(uri, Resident(budget_bytes))
    found.set_budget(budget_bytes)
    return found


def forget_root(uri: str) -> None:
    """Lets go of every group of one index root."""
    with _lock:
        found = _roots.get(uri)
    if found is not None:
        found.clear()
