"""What an object store answers when it does not do what it was asked, and what may be told of it.

obstore puts all that it has into the text of an error: the request, the answer's body, the client's state. Of that we
keep the status and the store's own code, and blot out every secret that we know of.
"""

from __future__ import annotations

import os
import random
import re
import time
from enum import Enum

from ...errors import StorageError
from ..storage_options import HIDDEN, StorageOptions
from .interface import FileMissingError

ATTEMPTS_MAX = 8
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 2.0

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>|\"code\":\s*\"([^\"]{1,100})\"")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})</Message>")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist")
_USER = re.compile(r"(?<=://)[^/\s\"']*@")
_QUERY = re.compile(r"\?[^\s\"')]*")
_WORTH_ANOTHER_TRY = (408, 425, 429)  # of what is otherwise the caller's fault
_HOPELESS = ("builder error", "Config error", "UnknownConfigurationKey")
_METADATA_SERVICES = ("169.254.169.254", "metadata.google.internal", "168.63.129.16")
_SECRET_VARIABLES = re.compile(r"(AWS|AZURE|GOOGLE|GCS|GCP).*(KEY|SECRET|TOKEN|SAS|PASSWORD|CREDENTIAL)")


class Answer(Enum):
    """What an error of obstore means for the one who asked."""

    missing = "no such object"
    no_bucket = "no such bucket"
    exists = "there already, or being put by another"
    denied = "not allowed"
    passing = "not now: the store, or the way to it, has trouble"
    refused = "never"


def answer_of(error: BaseException) -> Answer:
    """What an error that obstore raised means."""
    import obstore.exceptions as known

    text = str(error)
    if isinstance(error, FileNotFoundError):
        return Answer.no_bucket if any(code in text for code in _NO_BUCKET) else Answer.missing
    if isinstance(error, (known.AlreadyExistsError, known.PreconditionError)):
        return Answer.exists
    if isinstance(error, (known.PermissionDeniedError, known.UnauthenticatedError)):
        return Answer.denied
    if not isinstance(error, known.GenericError) or any(word in _first_line(text) for word in _HOPELESS):
        return Answer.refused
    status = _status(text)
    if status in (401, 403):  # listings and deletions do not tell these apart
        return Answer.denied
    if status is None or status >= 500 or status in _WORTH_ANOTHER_TRY:
        return Answer.refused if _asks_for_credentials(text) else Answer.passing
    return Answer.refused


def is_past_the_end(error: BaseException) -> bool:
    """True where a range was asked for that begins behind the object's end."""
    return _status(str(error)) == 416 or "StartTooLarge" in str(error)


def refusal(error: BaseException, shown: str, options: StorageOptions) -> StorageError:
    """The error of ours that an error of obstore becomes: what, where, what to do. `shown` is the object's URI."""
    answer, text = answer_of(error), str(error)
    if answer is Answer.missing:
        return FileMissingError(f"{shown}: no such file")
    said = scrubbed(_said(text), options)
    if answer is Answer.no_bucket:
        return StorageError(f"{shown}: there is no such bucket; create it, or mend the location ({said})")
    if answer is Answer.denied:
        return StorageError(
            f"{shown}: access denied ({said}); check the credentials, in storage_options or the environment, and what "
            "they allow: listing and reading, and for an index also writing and deleting"
        )
    if _asks_for_credentials(text):
        return StorageError(
            f"{shown}: no credentials; give them in storage_options=, in the environment (AWS_ACCESS_KEY_ID, ...), or "
            "run where an instance role has them"
        )
    if answer is Answer.passing:
        return StorageError(
            f"{shown}: the object store does not answer as it should ({said}); check endpoint and network, or try "
            "again later"
        )
    return StorageError(f"{shown}: the object store refused ({said})")


def scrubbed(text: str, options: StorageOptions) -> str:
    """A text without secrets: the options' and the environment's values, and who signs in, or what signs, in a URL."""
    variables = {value for name, value in os.environ.items() if _SECRET_VARIABLES.match(name) and len(value) >= 8}
    for secret in [*options.secrets(), *sorted(variables, key=len, reverse=True)]:
        text = text.replace(secret, HIDDEN)
    return _QUERY.sub("", _USER.sub("", text))


def pause(attempt: int) -> None:
    """Waits longer after more attempts, by chance, so that those who were told to come back do not meet again."""
    time.sleep(random.uniform(0.5, 1) * min(_PAUSE_S_MAX, _PAUSE_S_MIN * 2**attempt))


def _status(text: str) -> int | None:
    found = _STATUS.search(text)
    return int(found[1]) if found else None


def _said(text: str) -> str:
    """What matters of an error's text: status and code, where there was an answer."""
    status, code, message = _status(text), _CODE.search(text), _MESSAGE.search(text)
    parts = [str(status) if status else "", (code[1] or code[2]) if code else "", message[1] if message else ""]
    told = ": ".join(part for part in parts if part)
    return told or _first_line(text)[:300]


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else "no reason given"


def _asks_for_credentials(text: str) -> bool:
    """True where the client went to look for an instance's role, and there was none to be had."""
    return any(service in text for service in _METADATA_SERVICES)
