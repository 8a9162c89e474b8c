"""Values that are computed once per object, without a lock.

`functools.cached_property` of Python 3.11 uses one lock for all objects of a class while it computes a value. Threads
that each have a plan would wait for each other's reads, and a process that is forked then waits permanently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property:
        """A property that is computed when it is first read, and stored in the object's `__dict__`. Threads may compute
        it several times, and all get the value that was stored first."""

        def __init__(self, make):
            self._make, self._name, self.__doc__ = make, make.__name__, make.__doc__

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return instance.__dict__.setdefault(self._name, self._make(instance))  # one atomic step
