"""`--storage-option NAME=VALUE`, wherever it stands on a command line: what opens object stores."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidArgumentError

_STORAGE_OPTION = "--storage-option"
_storage_options: dict[str, str] = {}


def taken_storage_options(arguments: Sequence[str]) -> list[str]:
    """Takes `--storage-option NAME=VALUE` out of the arguments, wherever it stands, and keeps it for
    `storage_options`; the others are returned."""
    _storage_options.clear()
    left, rest = [], iter(arguments)
    for argument in rest:
        name, has_value, value = argument.partition("=")
        if name != _STORAGE_OPTION:
            left.append(argument)
            continue
        key, is_pair, text = (value if has_value else next(rest, "")).partition("=")
        if not key or not is_pair:
            raise InvalidArgumentError(f"{_STORAGE_OPTION} takes NAME=VALUE, as in region=eu-west-1")
        _storage_options[key] = text
    return left


def storage_options() -> dict[str, str] | None:
    """What the command line said of object stores; None where it said nothing."""
    return dict(_storage_options) or None


def is_local(location: str) -> bool:
    """True for a table in a folder of this machine."""
    return "://" not in location
