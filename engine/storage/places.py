"""Places of object stores: URIs, parsed into parts, and `storage_options`, which open them. Options contain secrets, so
they are never shown.

s3://BUCKET/KEY                                     also s3a://, s3n://
gs://BUCKET/KEY                                     also gcs://
az://CONTAINER/KEY                                  also azure://; the account is an option, or in the environment
abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/KEY  also abfs://, adl://
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote

from ...errors import InvalidArgumentError, StorageError

_SCHEMES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), "az"),
}
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(?:/(.*))?\Z", re.DOTALL)
_FILE_URI = re.compile(r"file:(?://([^/]*))?(/.*)\Z", re.DOTALL | re.IGNORECASE)
_UNSPEAKABLE = re.compile(r"[\x00-\x1f\x7f]")


class Place(NamedTuple):
    """A folder, or a file, of an object store.

    kind       "s3", "gs" or "az"
    bucket     the bucket or container
    account    the account of Azure, if the URI contains it; else ""
    key        "/" between names, none at either end; "" is the bucket itself
    """

    kind: str
    bucket: str
    account: str
    key: str

    @property
    def uri(self) -> str:
        """The one URI of this place, whatever URI named it."""
        host = f"abfss://{self.bucket}@{self.account}.dfs.core.windows.net" if self.account else self._host
        return f"{host}/{self.key}" if self.key else host

    @property
    def _host(self) -> str:
        return f"{self.kind}://{self.bucket}"

    def is_beside(self, other: Place) -> bool:
        """Return True for another key of the same bucket."""
        return (self.kind, self.bucket, self.account) == (other.kind, other.bucket, other.account)


def is_uri(path: str) -> bool:
    """Return True if a path has a scheme."""
    return "://" in path


def local_path_of(text: str) -> str:
    """Return the path that a `file:` URI names, its escapes resolved; any other text unchanged. Raises StorageError for
    a URI that names a host."""
    match = _FILE_URI.match(text)
    if match is None:
        return text
    if match[1] not in (None, "", "localhost"):
        raise StorageError(f"{text}: names the host {match[1]!r}, and files are read here: write file:///PATH")
    return unquote(match[2], errors="surrogateescape")


def place_of(uri: str) -> Place | None:
    """Return the place that a URI names; None for a path, or a scheme that no object store has.

    Raises InvalidArgumentError for a URI that contains credentials (without showing it), or names nothing.
    """
    match = _URI.match(uri)
    if match is None:
        return None
    kind, host, key = _SCHEMES.get(match[1].lower()), match[2], match[3] or ""
    user, is_user, _ = host.rpartition("@")
    of_store = kind is not None and (":" in host or (kind != "az" and bool(is_user)))
    if of_store or ":" in user or _has_signature(f"{host}/{key}"):
        raise InvalidArgumentError(
            f"{match[1]}:// locations contain no credentials: pass them in storage_options=, or in the environment"
        )
    if kind is None:
        return None
    bucket, _, rest = host.partition("@")
    if not bucket:
        raise InvalidArgumentError(f"{uri}: names no bucket")
    return Place(kind, bucket, rest.partition(".")[0], tidied(key, uri))


def tidied(key: str, shown: str) -> str:
    """Return a key without empty names, "." and "..". Raises StorageError for a key that no object store accepts."""
    if _UNSPEAKABLE.search(key):
        raise StorageError(f"{shown!r}: an object store has no names with control characters")
    normal = posixpath.normpath(key.strip("/")) if key.strip("/") else ""
    if normal == ".." or normal.startswith("../"):
        raise InvalidArgumentError(f"{shown}: leads out of the bucket")
    return "" if normal == "." else normal


def _has_signature(key: str) -> bool:
    """Return True for a text with a query after it that signs the request, as in a URL that is made to be shared."""
    query = key.partition("?")[2].lower()
    return any(f"{name}=" in query for name in ("sig", "signature", "x-amz-signature", "x-amz-credential", "token"))


HIDDEN = "***"
_SHORTEST_SECRET = 4  # a shorter value hides nothing, and replacing it would make errors unreadable
# Values that may be shown: without them no error about an endpoint could be read. All other values count as secrets.
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
        """Return the texts that may not be shown, longest first; of shown values, only users and signatures in URLs."""
        texts: set[str] = set()
        for name, value in self._values.items():
            if not name.endswith(_SHOWN):
                texts |= {value, quote(value, safe="")}
            elif "://" in value:
                user = value.partition("://")[2].rpartition("@")[0]
                texts |= {user, user.partition(":")[2], value.partition("?")[2]}
        shown = {text for text in texts if len(text) < _SHORTEST_SECRET} | {"true", "false"}
        return sorted(texts - shown, key=len, reverse=True)
