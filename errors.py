"""Every error that Skipstone raises for bad input, damage or conflict.

    SkipstoneError
    ├── CorruptionError        bytes that fail a check: which file, where, what was expected
    ├── FormatVersionError     a file or an instant from a version that this one does not read
    ├── CommitConflictError    another writer was first, and both touched the same thing
    ├── PredicateError         a predicate that cannot be read, with the place in the text
    ├── SchemaError            a column, a type or a partition value that does not fit the table
    ├── NotATableError         nothing that can be opened, or indexed, is there
    ├── NotReadableError       slices with live logs, deletes that we cannot apply, files not as planned
    ├── InvalidArgumentError   an argument that has no meaning: an unknown index kind, a bad fpp
    └── StorageError           the disk or the object store said no

Each is also the builtin that people catch where one fits, so `except ValueError` and `except FileNotFoundError` do
what one expects.
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

    A hint names verbs and arguments in braces, as in "{sync} follows what changed", and each face of the library words
    them in its own way. `str` has them as Python does: "sync() follows what changed".
    """

    bare_message: str

    def __init__(self, message: str = "", *, hint: str | None = None):
        self.bare_message, self._hint = message, hint
        super().__init__(self.worded(_PYTHON))

    @property
    def hint(self) -> str | None:
        """What to do about it, in the words of Python."""
        return self.hint_worded(_PYTHON)

    def worded(self, words: Mapping[str, str]) -> str:
        """The message and the hint in the words of a face, given by name. A hint that names what the face lacks is
        left out."""
        hint = self.hint_worded(words)
        return f"{self.bare_message}; {hint}" if hint else self.bare_message

    def hint_worded(self, words: Mapping[str, str]) -> str | None:
        """The hint in the words of a face; None where there is none, or it names what the face lacks."""
        try:
            return None if self._hint is None else self._hint.format_map(words)
        except KeyError:
            return None


class SkipstoneError(_Advising):
    """The base of every error raised here. `hint` says what to do about it, or is None."""


class SkipstoneWarning(_Advising, UserWarning):
    """What is worth knowing, and stops nothing."""


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
    """A format version or a feature flag that this version of Skipstone does not know."""


class CommitConflictError(SkipstoneError):
    """Another commit came first and touched the same thing. `paths` names the files, where files they are."""

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
    """Nothing there that can be opened or indexed."""


class NotReadableError(SkipstoneError, ValueError):
    """Rows that we must not read ourselves. `paths` names the files; their own format's reader can read them, but for
    one that lies on storage no more as it was planned: `changed` says what became of it."""

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
    """The disk or the object store refused; the message holds what it said."""


def _rebuild(kind: type[SkipstoneError], message: str, details: dict[str, Any]) -> SkipstoneError:
    """Executors send errors back pickled: the keyword arguments must survive."""
    return kind(message, **details)


def check_flags(**flags: object) -> None:
    """Raises InvalidArgumentError for an argument that is neither True nor False: a text like "no" would count as
    True."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InvalidArgumentError(f"{name}= is True or False, not {value!r}")


def is_integer(value: Any, least: int | None = None) -> TypeGuard[int]:
    """True for an int that is no bool, and no less than `least`: what an argument that counts something must be."""
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)
