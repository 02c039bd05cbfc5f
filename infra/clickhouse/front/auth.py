"""Who is asking. Two principals, no anonymous access; the words are ClickHouse's."""

import base64
import binascii
import hmac
from dataclasses import dataclass
from enum import Enum

from . import errors
from .errors import FrontError


class Principal(Enum):
    """Who may do what; policy.py holds the what."""

    WRITER = "strobe_writer"
    READER = "strobe_reader"


@dataclass(frozen=True, slots=True)
class Passwords:
    """The passwords as read at start."""

    writer: str
    reader: str

    def principal_of(self, user: str, password: str) -> Principal:
        """Returns who this is; takes equally long for every wrong answer."""
        is_writer = hmac.compare_digest(password.encode(), self.writer.encode()) and user == Principal.WRITER.value
        is_reader = hmac.compare_digest(password.encode(), self.reader.encode()) and user == Principal.READER.value
        if is_writer:
            return Principal.WRITER
        if is_reader:
            return Principal.READER
        raise FrontError(
            errors.AUTHENTICATION_FAILED,
            f"{user[:64]!r}: Authentication failed: password is incorrect, or there is no user with such name",
        )


def credentials(headers, params: dict[str, str]) -> tuple[str, str]:
    """Returns user and password from the headers, Basic auth or the URL, in ClickHouse's order."""
    if "X-ClickHouse-User" in headers or "X-ClickHouse-Key" in headers:
        return headers.get("X-ClickHouse-User", ""), headers.get("X-ClickHouse-Key", "")
    authorization = headers.get("Authorization", "")
    if authorization.lower().startswith("basic "):
        try:
            user, _, password = base64.b64decode(authorization[6:].strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise FrontError(errors.AUTHENTICATION_FAILED, "the Authorization header is not Basic auth") from None
        return user, password
    if "user" in params:
        return params["user"], params.get("password", "")
    raise FrontError(errors.REQUIRED_PASSWORD, "Authentication failed: name a user and a password")
