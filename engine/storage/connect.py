"""From a place and options to a client of obstore.

Credentials come the usual ways: options by the names that deltalake, obstore and fsspec have for them, then the
environment (AWS_ACCESS_KEY_ID, AZURE_STORAGE_ACCOUNT_KEY, GOOGLE_APPLICATION_CREDENTIALS, ...), then what the machine
is given: web identities, containers' and instances' roles. A named profile of AWS is read by boto3.

obstore is imported here and nowhere before: who has local files only does not need it. It tries nothing twice, since
only who knows how often a conditional put was tried can tell whose object it meets.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from ...errors import InvalidArgumentError, StorageError
from ..storage_options import StorageOptions
from .places import Place
from .refusals import scrubbed

_PREFIXES = {"s3": ("aws_",), "gs": ("google_", "gcs_"), "az": ("azure_",)}
_FSSPEC_NAMES = {
    "s3": {"key": "access_key_id", "secret": "secret_access_key", "anon": "skip_signature", "region_name": "region"},
    "gs": {},
    "az": {},
}
_OF_DELTALAKE = ("aws_s3_allow_unsafe_rename", "aws_s3_locking_provider", "delta_dynamo_table_name")
_ENDPOINTS = {
    "s3": ("endpoint", "endpoint_url", "aws_endpoint", "aws_endpoint_url", "endpoint_url_s3", "aws_endpoint_url_s3"),
    "gs": ("base_url", "google_base_url"),
    "az": ("endpoint", "azure_endpoint", "azure_storage_endpoint"),
}
_KEYS = ("key", "access_key_id", "aws_access_key_id", "anon", "skip_signature", "aws_skip_signature")
_PROFILES = ("profile", "aws_profile")
_CLIENTS_MAX = 64


def connect(place: Place, options: StorageOptions) -> Any:
    """A client for the place's bucket, shared by all who ask the same. Raises StorageError where obstore is not
    installed or cannot be set up so, InvalidArgumentError for an option that it does not know."""
    variables = (item for item in os.environ.items() if item[0].startswith(("AWS_", "AZURE_", "GOOGLE_")))
    return _connected(place.kind, place.bucket, place.account, options, tuple(sorted(variables)), os.getpid())


@lru_cache(_CLIENTS_MAX)
def _connected(kind: str, bucket: str, account: str, options: StorageOptions, variables: tuple, process: int) -> Any:
    try:
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise StorageError(
            f"{kind}://{bucket}: object stores are reached by way of obstore, which is not installed: "
            "pip install 'skipstone[cloud]'"
        ) from error
    makers: dict[str, Any] = {"s3": obstore.store.S3Store, "gs": obstore.store.GCSStore, "az": obstore.store.AzureStore}
    more: dict[str, Any] = {"config": _config(kind, account, options), "retry_config": {"max_retries": 0}}
    profile = _profile(options) if kind == "s3" else None
    if profile:
        more["credential_provider"] = _of_profile(profile)
    try:
        return makers[kind](bucket, **more)
    except obstore.exceptions.UnknownConfigurationKeyError as error:
        told = scrubbed(str(error).splitlines()[0], options)
        raise InvalidArgumentError(f"storage_options= for {kind}://: {told}") from None
    except (obstore.exceptions.BaseError, ValueError) as error:
        told = scrubbed(str(error).splitlines()[0], options)
        raise StorageError(f"{kind}://{bucket}: cannot be opened so ({told}); mend storage_options=") from None


def _config(kind: str, account: str, options: StorageOptions) -> dict[str, str]:
    """The options for one kind of store, by obstore's names; those for other kinds are left out, and those with a dot
    in their names, which are pyiceberg's."""
    others = tuple(prefix for other, prefixes in _PREFIXES.items() if other != kind for prefix in prefixes)
    config = {}
    for name, value in options.items():
        if "." not in name and not name.startswith(others) and name not in (*_OF_DELTALAKE, *_PROFILES):
            config[_FSSPEC_NAMES[kind].get(name, name)] = value
    if account:
        config.setdefault("account_name", account)
    told = [options.get(name, "") for name in _ENDPOINTS[kind]]
    told += [os.environ.get(name.upper(), "") for name in _ENDPOINTS[kind] if name.startswith(_PREFIXES[kind])]
    for endpoint in told:
        _check_url(endpoint, kind)
    if any(endpoint.lower().startswith("http://") for endpoint in told) and "aws_allow_http" not in config:
        config.setdefault("allow_http", "true")  # who writes http:// has said so
    return config


def _check_url(endpoint: str, kind: str) -> None:
    """Raises InvalidArgumentError, which does not show it, for an endpoint whose host cannot be told from the rest of
    it: obstore would panic."""
    try:
        parts = urlsplit(endpoint)
        is_url = not parts.netloc or (bool(parts.hostname) and parts.port != 0)
    except ValueError:  # a port that is no number
        is_url = False
    if not is_url:
        raise InvalidArgumentError(
            f"storage_options= for {kind}://: an endpoint is a URL as https://HOST:PORT, and what is given is none; "
            "credentials belong in options of their own"
        )


def _profile(options: StorageOptions) -> str | None:
    """The profile of AWS that is asked for: by an option, or by the environment where no key is given."""
    named = next((options[name] for name in _PROFILES if name in options), None)
    if named or any(name in options for name in _KEYS) or "AWS_ACCESS_KEY_ID" in os.environ:
        return named
    return os.environ.get("AWS_PROFILE")


def _of_profile(name: str) -> Any:
    """What gives the credentials of a profile, and renews them."""
    try:
        import boto3.session
        import botocore.exceptions
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise StorageError(
            f"profiles of AWS ({name!r}) are read by boto3, which is not installed: pip install boto3"
        ) from error
    try:
        return Boto3CredentialProvider(boto3.session.Session(profile_name=name))
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        told = f"the profile {name!r} of AWS gives no credentials ({error}); mend it, or name another"
        raise StorageError(told) from None
