"""What opens an object store: `storage_options`, which hold secrets, and so are never shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import quote

from ...errors import InvalidArgumentError

HIDDEN = "***"
_SHORTEST_SECRET = 4  # a shorter value hides nothing, and to blot it out would make errors unreadable
# What may be shown: without it no error about an endpoint could be read. All other values count as secrets.
_SHOWN = (
    "endpoint",
    "endpoint_url",
    "region",
    "default_region",
    "region_name",
    "account_name",
    "allow_http",
    "profile",
)


class StorageOptions(Mapping[str, str]):
    """Names and values, as texts; names in lower case. Immutable, hashable, picklable; no `repr` shows a value."""

    def __init__(self, values: Mapping[str, object] | None = None):
        self._values: dict[str, str] = {}
        if values is not None and not isinstance(values, Mapping):
            raise InvalidArgumentError(
                f"storage_options= is a mapping of names to texts, not a {type(values).__name__}"
            )
        for name, value in (values or {}).items():
            if not isinstance(name, str) or not isinstance(value, (str, int, float)):
                raise InvalidArgumentError(
                    f"storage_options= is a mapping of names to texts; {name!r} is given a {type(value).__name__}"
                )
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if name.lower() in self._values:
                raise InvalidArgumentError(f"storage_options= names {name.lower()!r} twice")
            self._values[name.lower()] = text

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(f'{name}={HIDDEN}' for name in self._values)})"

    def secrets(self) -> list[str]:
        """The texts that nothing may show, longest first: of what may be shown, who signs in, and what signs a URL."""
        texts: set[str] = set()
        for name, value in self._values.items():
            if not name.endswith(_SHOWN):
                texts |= {value, quote(value, safe="")}
            elif "://" in value:
                user = value.partition("://")[2].rpartition("@")[0]
                texts |= {user, user.partition(":")[2], value.partition("?")[2]}
        shown = {text for text in texts if len(text) < _SHORTEST_SECRET} | {"true", "false"}
        return sorted(texts - shown, key=len, reverse=True)
