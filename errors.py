"""Every error that Skipstone raises for bad input, damage or conflict.

    SkipstoneError
    ├── CorruptionError        bytes that fail a check: which file, where, what was expected
    ├── FormatVersionError     a file or an instant of a format that this version does not read
    ├── CommitConflictError    another writer committed first, and both changed the same thing
    ├── PredicateError         a predicate that cannot be read, with the place in the text
    ├── SchemaError            a column, a type or a partition value that does not fit the table
    ├── NotATableError         there is nothing that can be opened or indexed
    ├── NotReadableError       live logs or deletes that cannot be applied, files that changed since the plan
    ├── InvalidArgumentError   an argument that has no meaning: an unknown index kind, a bad fpp
    └── StorageError           the disk or the object store returned an error

Each is also a builtin error if one fits, so `except ValueError` and `except FileNotFoundError` catch them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

_VERBS = (
    *("create", "open", "sync", "refresh", "alter", "restore", "verify", "drop_savepoint"),
    *("create_index", "drop_index", "refresh_index"),
)
_PYTHON = {
    **{name: f"{name}()" for name in _VERBS},
    **{name: f"{name}=" for name in ("index_path", "schema")},
    "on_misfit": 'on_misfit="quarantine"',
    "ignore_deletes": "ignore_deletes=True",
    "adopt": "ss.adopt(path) (on a command line: `skipstone adopt PATH`)",
}


class _Advising(Exception):
    """An error or a warning with a hint, which says what to do about it.

    A hint names verbs and arguments in braces, as in "{sync} adds new files". Python shows "sync() adds new files",
    the command line "`skipstone sync` adds new files".
    """

    bare_message: str

    def __init__(self, message: str = "", *, hint: str | None = None):
        self.bare_message, self._hint = message, hint
        super().__init__(self.worded(_PYTHON))

    @property
    def hint(self) -> str | None:
        """What to do about it, as Python code."""
        return self.hint_worded(_PYTHON)

    def worded(self, words: Mapping[str, str]) -> str:
        """Return the message and the hint in the terms of an interface, by name. A hint that names what the interface
        lacks is left out."""
        hint = self.hint_worded(words)
        return f"{self.bare_message}; {hint}" if hint else self.bare_message

    def hint_worded(self, words: Mapping[str, str]) -> str | None:
        """Return the hint in the terms of an interface; None if there is none, or it names what the interface lacks."""
        try:
            return None if self._hint is None else self._hint.format_map(words)
        except KeyError:
            return None


class SkipstoneError(_Advising):
    """The base of every error raised here. `hint` says what to do about it, or is None."""


class SkipstoneWarning(_Advising, UserWarning):
    """A problem that does not stop the call."""


class CorruptionError(SkipstoneError, ValueError):
    """Bytes that fail a check. `path`, `offset` (bytes, or None) and `check` (which one) say where and what."""

    message: str
    path: str | None
    offset: int | None
    check: str | None

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        check: str | None = None,
        hint: str | None = None,
    ):
        where = "" if path is None else f"{path}: "
        at = "" if offset is None else f" (at byte {offset:,})"
        super().__init__(f"{where}{message}{at}", hint=hint)
        self.message, self.path, self.offset, self.check = message, path, offset, check

    def __reduce__(self) -> tuple[Any, ...]:
        details = {"path": self.path, "offset": self.offset, "check": self.check, "hint": self._hint}
        return _rebuild, (type(self), self.message, details)


class FormatVersionError(SkipstoneError, ValueError):
    """A format version or a feature flag that this version of Skipstone does not support."""


class CommitConflictError(SkipstoneError):
    """Another writer committed first and changed the same thing. `paths` names the files, if it is files."""

    message: str
    paths: list[str]

    def __init__(self, message: str, *, paths: Sequence[str] = (), hint: str | None = None):
        super().__init__(message, hint=hint)
        self.message, self.paths = message, list(paths)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, {"paths": self.paths, "hint": self._hint})


_SHOWN_CHARACTERS = 300


def _part_around(text: str, position: int) -> tuple[str, int]:
    """What to show of a text, and where in it the position is: the whole text unless it is long."""
    if len(text) <= 2 * _SHOWN_CHARACTERS:
        return text, position
    start = max(0, position - _SHOWN_CHARACTERS)
    stop = position + _SHOWN_CHARACTERS
    before, after = "... " if start else "", " ..." if stop < len(text) else ""
    return f"{before}{text[start:stop]}{after}", position - start + len(before)


class PredicateError(SkipstoneError, ValueError):
    """A predicate that cannot be read or bound. `text` and `position` (0-based, or None) show the place."""

    message: str
    text: str | None
    position: int | None

    def __init__(self, message: str, *, text: str | None = None, position: int | None = None):
        shown = message
        if text is not None:
            part, offset = _part_around(text, position or 0)
            shown += f"\n  {part}"
            if position is not None:
                shown += f"\n  {' ' * offset}^"
        super().__init__(shown)
        self.message, self.text, self.position = message, text, position

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, {"text": self.text, "position": self.position})


class SchemaError(SkipstoneError, ValueError):
    """A column, a type or a partition value that does not fit."""


class NotATableError(SkipstoneError, FileNotFoundError):
    """There is nothing that can be opened or indexed."""


class NotReadableError(SkipstoneError, ValueError):
    """Rows that Skipstone must not read. `paths` names the files. The reader of their format can read them, except for
    a file that was changed or removed since the plan: `changed` says which."""

    message: str
    paths: list[str]
    changed: str | None

    def __init__(self, message: str, *, paths: Sequence[str] = (), changed: str | None = None, hint: str | None = None):
        super().__init__(message, hint=hint)
        self.message, self.paths, self.changed = message, list(paths), changed

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, {"paths": self.paths, "changed": self.changed, "hint": self._hint})


class InvalidArgumentError(SkipstoneError, ValueError):
    """An argument that has no meaning here."""


class StorageError(SkipstoneError, OSError):
    """The disk or the object store returned an error, which the message contains."""


def _rebuild(kind: type[SkipstoneError], message: str, details: dict[str, Any]) -> SkipstoneError:
    """Build an error from its pickle, in which executors return it."""
    return kind(message, **details)


def check_flags(**flags: object) -> None:
    """Raise InvalidArgumentError for an argument that is neither True nor False: a text like "no" would count as
    True."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{name}= is True or False, not {value!r}")


def is_integer(value: Any, least: int | None = None) -> TypeGuard[int]:
    """True for an int that is no bool, and no less than `least`: what an argument that counts something must be."""
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)
