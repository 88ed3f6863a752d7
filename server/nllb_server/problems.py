"""The one exception that becomes an error reply.

Knows status codes and words. Must not know requests, the engine or aiohttp: middlewares turn it into JSON.
"""

import difflib
from collections.abc import Iterable


class ApiError(Exception):
    """An answer of status 400 or more, with a `code` for programs and a message that says what to do.

    `known` lists what would have been accepted and `near` what looks like it; `retry_after` is in seconds.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        known: Iterable[str] | None = None,
        near: Iterable[str] | None = None,
        retry_after: int | None = None,
    ) -> None:
        """Keep the parts of the reply. No text of a user may be among them."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.known = None if known is None else sorted(known)
        self.near = None if near is None else list(near)
        self.retry_after = retry_after


def unknown_name(what: str, name: str, known: Iterable[str]) -> ApiError:
    """404 for a `what` ("adapter", "language"), with those that exist and those that are spelt alike."""
    names = sorted(known)
    folded = {candidate.lower().replace("-", "_"): candidate for candidate in names}
    wanted = name[:64].lower().replace("-", "_")
    alike = [one for one in folded if wanted and one.startswith(wanted)]
    alike = alike or difflib.get_close_matches(wanted, folded, n=3, cutoff=0.5)
    near = [folded[one] for one in alike[:3]]
    hint = f"did you mean {' or '.join(near)}?" if near else "the list of known ones is in `known`"
    message = (
        f"unknown {what} {name[:64]!r}; {hint}" if names else f"unknown {what} {name[:64]!r}; none is known"
    )
    return ApiError(404, f"unknown_{what}", message, known=names, near=near)


def misdirected(what: str, name: str) -> ApiError:
    """421 for a `what` that other pods of the fleet hold; a new connection may reach one of them."""
    message = f"this pod does not hold {what} {name!r}, others of its fleet do; repeat on a new connection"
    return ApiError(421, f"{what}_elsewhere", message, retry_after=1)


def unavailable(code: str, message: str, retry_after: int = 1) -> ApiError:
    """503 with Retry-After: the same request will succeed later or elsewhere."""
    return ApiError(503, code, message, retry_after=retry_after)
