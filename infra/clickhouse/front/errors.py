"""ClickHouse's errors as HTTP answers: a code, a name, a status."""

import re

READONLY = 164
BAD_ARGUMENTS = 36
NOT_IMPLEMENTED = 48
UNKNOWN_FORMAT = 73
SYNTAX_ERROR = 62
TIMEOUT_EXCEEDED = 159
REQUIRED_PASSWORD = 194
TOO_MANY_SIMULTANEOUS_QUERIES = 202
SOCKET_TIMEOUT = 209
CANNOT_READ_ALL_DATA = 33
CHECKSUM_DOESNT_MATCH = 40
CANNOT_DECOMPRESS = 271
QUERY_WAS_CANCELLED = 394
TOO_MANY_ROWS_OR_BYTES = 396
AUTHENTICATION_FAILED = 516

_NAMES = {
    READONLY: "READONLY",
    BAD_ARGUMENTS: "BAD_ARGUMENTS",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    UNKNOWN_FORMAT: "UNKNOWN_FORMAT",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    TIMEOUT_EXCEEDED: "TIMEOUT_EXCEEDED",
    REQUIRED_PASSWORD: "REQUIRED_PASSWORD",
    TOO_MANY_SIMULTANEOUS_QUERIES: "TOO_MANY_SIMULTANEOUS_QUERIES",
    SOCKET_TIMEOUT: "SOCKET_TIMEOUT",
    CANNOT_READ_ALL_DATA: "CANNOT_READ_ALL_DATA",
    CHECKSUM_DOESNT_MATCH: "CHECKSUM_DOESNT_MATCH",
    CANNOT_DECOMPRESS: "CANNOT_DECOMPRESS",
    QUERY_WAS_CANCELLED: "QUERY_WAS_CANCELLED",
    TOO_MANY_ROWS_OR_BYTES: "TOO_MANY_ROWS_OR_BYTES",
    AUTHENTICATION_FAILED: "AUTHENTICATION_FAILED",
}

# What ClickHouse's own HTTP handler answers; every other code is a 500.
_STATUS = {
    401: {194},
    403: {192, 193, 497, 516},
    400: {6, 26, 27, 32, 33, 36, 38, 41, 43, 53, 62, 69, 72, 117, 130, 167, 168, 456, 457},
    404: {16, 46, 47, 50, 56, 60, 63, 73, 75, 81, 115, 141},
    408: {159, 209},
    501: {48},
    503: {202},
}
_BY_CODE = {code: status for status, codes in _STATUS.items() for code in codes}

_CODE = re.compile(r"Code: (\d+)\.")


class FrontError(Exception):
    """A refusal of the front or of the engine, ready to be sent."""

    def __init__(self, code: int, message: str, status: int | None = None):
        super().__init__(message)
        self.code = code
        self.status = status or _BY_CODE.get(code, 500)

    def text(self, version: str) -> str:
        """Returns the line that ClickHouse would send."""
        name = _NAMES.get(self.code, "UNKNOWN")
        return f"Code: {self.code}. DB::Exception: {self}. ({name}) (version {version})\n"


class EngineError(FrontError):
    """What chDB raised: its text is already ClickHouse's."""

    def __init__(self, raw: str):
        match = _CODE.search(raw)
        super().__init__(int(match.group(1)) if match else 1002, raw.strip())

    def text(self, version: str) -> str:
        message = str(self)
        if "(version " not in message:
            message += f" (version {version})"
        return message + "\n"


def too_large(what: str, limit: int) -> FrontError:
    """Returns the answer to a query text or header over its bound."""
    return FrontError(SYNTAX_ERROR, f"{what} is larger than {limit} bytes", status=413)
