"""Values that are computed once per object, without a lock.

`functools.cached_property` of Python 3.11 holds one lock for all objects of a class while it works a value out: threads
with a plan each wait for each other's reads, and a process that was forked meanwhile waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

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
