"""Values that are kept: worked out once an object, without a lock, or up to a number of bytes.

`functools.cached_property` of Python 3.11 holds one lock for all objects of a class while it works a value out: threads
with a plan each wait for each other's reads, and a process that was forked meanwhile waits for ever.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar, overload

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class cached_property(Generic[T]):
    """A property that is worked out when it is first asked for, and kept in the object's `__dict__`.

    Threads that ask at once may each work it out; all get what the first of them published. So it is for values that
    are the same whoever works them out.
    """

    def __init__(self, make: Callable[[Any], T]):
        self._make, self._name = make, make.__name__
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> T: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> cached_property[T] | T:
        if instance is None:
            return self
        value = self._make(instance)
        return instance.__dict__.setdefault(self._name, value)  # one step, which no other thread can part


class SizedCache(Generic[K, T]):
    """Items up to a number of bytes together, the last one always. Shared by threads; the lock is held for a step of
    the list, never while an item is read or decoded."""

    def __init__(self, capacity_bytes: int):
        self.capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        self._items: OrderedDict[K, tuple[T, int]] = OrderedDict()
        self.size_bytes = 0

    def peek(self, key: K) -> T | None:
        """An item, or None. It is evicted no later for it: without a lock, for what is read at every look-up."""
        pair = self._items.get(key)
        return None if pair is None else pair[0]

    def get(self, key: K) -> T | None:
        """An item, which is then the one used last; None where it is not cached."""
        with self._lock:
            pair = self._items.get(key)
            if pair is None:
                return None
            self._items.move_to_end(key)
            return pair[0]

    def put(self, key: K, item: T, size_bytes: int) -> None:
        """Adds an item, unless the key has one, and evicts those that were used or added first."""
        with self._lock:
            if key in self._items:
                return
            self._items[key] = item, size_bytes
            self.size_bytes += size_bytes
            while self.size_bytes > self.capacity_bytes and len(self._items) > 1:
                self.size_bytes -= self._items.popitem(last=False)[1][1]

    def drop(self, key: K) -> None:
        """Evicts an item: one that turned out damaged must not answer for a file that is sound again."""
        with self._lock:
            pair = self._items.pop(key, None)
            if pair is not None:
                self.size_bytes -= pair[1]
