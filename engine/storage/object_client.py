"""Creates a client of obstore from a place and options.

Credentials are found in the usual order: options by the names that deltalake, obstore and fsspec use, then the
environment (AWS_ACCESS_KEY_ID, AZURE_STORAGE_ACCOUNT_KEY, GOOGLE_APPLICATION_CREDENTIALS, ...), then what the machine
provides: web identities, roles of containers and instances. boto3 reads a named profile of AWS.

Only this module imports obstore, so users of local files do not need it. obstore does not retry, because only code that
counts the tries of a conditional put can prove whose object exists.

Errors of obstore are converted to Skipstone errors here, without the secrets that their texts contain: the request, the
body of the answer, the state of the client.
"""

from __future__ import annotations

import os
import random
import re
import time
from enum import Enum
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from ...errors import InvalidArgumentError, StorageError
from .interface import FileMissingError
from .places import HIDDEN, Place, StorageOptions

ATTEMPTS_MAX = 8
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 2.0

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>|\"code\":\s*\"([^\"]{1,100})\"")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist")
_USER = re.compile(r"(?<=://)[^/\s\"']*@")
_QUERY = re.compile(r"\?[^\s\"')]*")
_WORTH_ANOTHER_TRY = (408, 425, 429)  # all other codes of 4xx are errors of the caller
_HOPELESS = ("builder error", "Config error", "UnknownConfigurationKey")
_METADATA_SERVICES = ("169.254.169.254", "metadata.google.internal", "168.63.129.16")
_SECRET_VARIABLES = re.compile(r"(AWS|AZURE|GOOGLE|GCS|GCP).*(KEY|SECRET|TOKEN|SAS|PASSWORD|CREDENTIAL)")


class Failure(Enum):
    """The meaning of an error of obstore for the caller."""

    missing = "no such object"
    no_bucket = "no such bucket"
    exists = "it exists, or another writer is putting it"
    denied = "not allowed"
    passing = "the store or the network failed"
    refused = "never"


def failure_of(error: BaseException) -> Failure:
    """Return the meaning of an error that obstore raised."""
    import obstore.exceptions as known

    text = str(error)
    if isinstance(error, FileNotFoundError):
        return Failure.no_bucket if any(code in text for code in _NO_BUCKET) else Failure.missing
    if isinstance(error, (known.AlreadyExistsError, known.PreconditionError)):
        return Failure.exists
    if isinstance(error, (known.PermissionDeniedError, known.UnauthenticatedError)):
        return Failure.denied
    if not isinstance(error, known.GenericError) or any(word in _first_line(text) for word in _HOPELESS):
        return Failure.refused
    status = _status(text)
    if status in (401, 403):  # listings and deletions do not distinguish these
        return Failure.denied
    if status is None or status >= 500 or status in _WORTH_ANOTHER_TRY:
        return Failure.refused if _asks_for_credentials(text) else Failure.passing
    return Failure.refused


def is_past_the_end(error: BaseException) -> bool:
    """Return True if the requested range begins after the end of the object."""
    return _status(str(error)) == 416 or "StartTooLarge" in str(error)


def refusal(error: BaseException, shown: str, options: StorageOptions) -> StorageError:
    """Return the Skipstone error for an error of obstore: what, where, what to do. `shown` is the object's URI."""
    failure, text = failure_of(error), str(error)
    if failure is Failure.missing:
        return FileMissingError(f"{shown}: no such file")
    message = scrubbed(_message_of(text), options)
    if failure is Failure.no_bucket:
        return StorageError(f"{shown}: there is no such bucket; create it, or correct the location ({message})")
    if failure is Failure.denied:
        return StorageError(
            f"{shown}: access denied ({message}); check the credentials, in storage_options or the environment, and "
            "what they allow: listing and reading, and for an index also writing and deleting"
        )
    if _asks_for_credentials(text):
        return StorageError(
            f"{shown}: no credentials; give them in storage_options=, in the environment (AWS_ACCESS_KEY_ID, ...), or "
            "run where an instance role has them"
        )
    if failure is Failure.passing:
        return StorageError(
            f"{shown}: the object store does not answer as it should ({message}); check endpoint and network, or try "
            "again later"
        )
    return StorageError(f"{shown}: the object store refused ({message})")


def scrubbed(text: str, options: StorageOptions) -> str:
    """Return a text without secrets: values of the options and the environment, users and signatures in URLs."""
    variables = {value for name, value in os.environ.items() if _SECRET_VARIABLES.match(name) and len(value) >= 8}
    for secret in [*options.secrets(), *sorted(variables, key=len, reverse=True)]:
        text = text.replace(secret, HIDDEN)
    return _QUERY.sub("", _USER.sub("", text))


def pause(attempt: int) -> None:
    """Wait longer after more attempts, for a random time, so that writers that wait do not collide again."""
    time.sleep(random.uniform(0.5, 1) * min(_PAUSE_S_MAX, _PAUSE_S_MIN * 2**attempt))


def _status(text: str) -> int | None:
    match = _STATUS.search(text)
    return int(match[1]) if match else None


def _message_of(text: str) -> str:
    """Return the essence of an error's text: status and code, if there was an answer."""
    status, code, message = _status(text), _CODE.search(text), _MESSAGE.search(text)
    parts = [str(status) if status else "", (code[1] or code[2]) if code else "", message[1] if message else ""]
    summary = ": ".join(part for part in parts if part)
    return summary or _first_line(text)[:300]


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else "no reason given"


def _asks_for_credentials(text: str) -> bool:
    """Return True if the client looked for an instance's role, and none was available."""
    return any(service in text for service in _METADATA_SERVICES)


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
    """Return a client for the place's bucket, shared by callers with equal arguments. Raises StorageError if obstore
    is not installed or cannot be set up this way, InvalidArgumentError for an option that it does not know."""
    variables = (item for item in os.environ.items() if item[0].startswith(("AWS_", "AZURE_", "GOOGLE_")))
    return _connected(place.kind, place.bucket, place.account, options, tuple(sorted(variables)), os.getpid())


@lru_cache(_CLIENTS_MAX)
def _connected(kind: str, bucket: str, account: str, options: StorageOptions, variables: tuple, process: int) -> Any:
    try:
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise StorageError(
            f"{kind}://{bucket}: object stores are reached through obstore, which is not installed: "
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
        message = scrubbed(str(error).splitlines()[0], options)
        raise InvalidArgumentError(f"storage_options= for {kind}://: {message}") from None
    except (obstore.exceptions.BaseError, ValueError) as error:
        message = scrubbed(str(error).splitlines()[0], options)
        raise StorageError(f"{kind}://{bucket}: cannot be opened ({message}); correct storage_options=") from None


def _config(kind: str, account: str, options: StorageOptions) -> dict[str, str]:
    """Return the options for one kind of store, by obstore's names. Options for other kinds are left out, and those
    with a dot in their names, which are pyiceberg's."""
    others = tuple(prefix for other, prefixes in _PREFIXES.items() if other != kind for prefix in prefixes)
    config = {}
    for name, value in options.items():
        if "." not in name and not name.startswith(others) and name not in (*_OF_DELTALAKE, *_PROFILES):
            config[_FSSPEC_NAMES[kind].get(name, name)] = value
    if account:
        config.setdefault("account_name", account)
    endpoints = [options.get(name, "") for name in _ENDPOINTS[kind]]
    endpoints += [os.environ.get(name.upper(), "") for name in _ENDPOINTS[kind] if name.startswith(_PREFIXES[kind])]
    for endpoint in endpoints:
        _check_url(endpoint, kind)
    if any(endpoint.lower().startswith("http://") for endpoint in endpoints) and "aws_allow_http" not in config:
        config.setdefault("allow_http", "true")  # the user chose http://
    return config


def _check_url(endpoint: str, kind: str) -> None:
    """Raise InvalidArgumentError, which does not show it, for an endpoint without a clear host: obstore would
    panic."""
    try:
        parts = urlsplit(endpoint)
        is_url = not parts.netloc or (bool(parts.hostname) and parts.port != 0)
    except ValueError:  # the port is not a number
        is_url = False
    if not is_url:
        raise InvalidArgumentError(
            f"storage_options= for {kind}://: an endpoint is a URL such as https://HOST:PORT; pass credentials in "
            "their own options"
        )


def _profile(options: StorageOptions) -> str | None:
    """Return the requested profile of AWS: from an option, or from the environment if no key is given."""
    named = next((options[name] for name in _PROFILES if name in options), None)
    if named or any(name in options for name in _KEYS) or "AWS_ACCESS_KEY_ID" in os.environ:
        return named
    return os.environ.get("AWS_PROFILE")


def _of_profile(name: str) -> Any:
    """Return a provider of a profile's credentials, which also renews them."""
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
        message = f"the profile {name!r} of AWS gives no credentials ({error}); correct it, or name another"
        raise StorageError(message) from None
