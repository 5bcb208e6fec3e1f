"""One exception class for each AMQP 0-9-1 reply code.

Soft errors close the channel, hard errors the connection (spec 1.2, domain reply-code). The text follows
RabbitMQ's, because clients match on it; it is cut to the 255 bytes of a short string when it is sent.
"""

from __future__ import annotations

TEXT_BYTES_MAX = 255


class AMQPError(Exception):
    """An error that is sent to the client: `code`, and `NAME - text`."""

    code: int = 541
    name: str = "INTERNAL_ERROR"
    hard: bool = True

    def __init__(self, text: str, method: tuple[int, int] | None = None) -> None:
        super().__init__(text)
        self.text = text
        #: (class id, method id) of the method at fault, if it is not the current one.
        self.method = method

    def reply_text(self) -> str:
        """Return `NAME - text`, at most 255 bytes, cut with three dots as RabbitMQ does."""
        text = f"{self.name} - {self.text}" if self.text else self.name
        encoded = text.encode()
        if len(encoded) <= TEXT_BYTES_MAX:
            return text
        return encoded[: TEXT_BYTES_MAX - 3].decode(errors="ignore") + "..."


class SoftError(AMQPError):
    """Closes the channel."""

    hard = False


class HardError(AMQPError):
    """Closes the connection."""


class AccessRefused(SoftError):
    code, name = 403, "ACCESS_REFUSED"


class NotFound(SoftError):
    code, name = 404, "NOT_FOUND"


class HomeNodeDown(NotFound):
    """The only node that has the queue cannot be reached."""


class ResourceLocked(SoftError):
    code, name = 405, "RESOURCE_LOCKED"


class PreconditionFailed(SoftError):
    code, name = 406, "PRECONDITION_FAILED"


class Unavailable(SoftError):
    """The operation is impossible now; the client may try again, and its connection stays open."""

    code, name = 506, "RESOURCE_ERROR"


class LoginRefused(HardError):
    code, name = 403, "ACCESS_REFUSED"


class ConnectionForced(HardError):
    code, name = 320, "CONNECTION_FORCED"


class FrameError(HardError):
    code, name = 501, "FRAME_ERROR"


class SyntaxError_(HardError):
    code, name = 502, "SYNTAX_ERROR"


class CommandInvalid(HardError):
    code, name = 503, "COMMAND_INVALID"


class ChannelError(HardError):
    code, name = 504, "CHANNEL_ERROR"


class UnexpectedFrame(HardError):
    code, name = 505, "UNEXPECTED_FRAME"


class ResourceError(HardError):
    code, name = 506, "RESOURCE_ERROR"


class NotAllowed(HardError):
    code, name = 530, "NOT_ALLOWED"


class NotImplemented_(HardError):
    code, name = 540, "NOT_IMPLEMENTED"


class InternalError(HardError):
    code, name = 541, "INTERNAL_ERROR"
