"""Every error the engine raises on purpose, one class per boundary.

Knows nothing but the words. A message says what is wrong and what to do; it never holds a user's text.
"""


class EngineError(Exception):
    """Base of all errors the engine raises on purpose."""


class UnsupportedByModel(EngineError):
    """A method of the model interface that this model does not offer (the interface's default answer)."""

    def __init__(self, method: str, detail: str = "") -> None:
        """Name the `method`; `detail` says what to call instead, where there is something."""
        self.method = method
        super().__init__(f"this model does not support {method}" + (f": {detail}" if detail else ""))


class CheckpointError(EngineError):
    """A model folder that cannot be read: a missing file, field or tensor, a wrong dtype or shape."""


class TokenizerError(EngineError):
    """A tokenizer file that is missing, damaged or does not fit the model."""


class UnknownLanguage(EngineError):
    """A language code that this checkpoint does not have."""

    def __init__(self, code: str, known: list[str]) -> None:
        """Keep the refused `code` and the sorted list of `known` codes for the caller's answer."""
        self.code = code
        self.known = known
        super().__init__(f"unknown language {code!r}; use one of the {len(known)} codes of this model, "
                         f"for example {', '.join(known[:3])}")


class InvalidRequest(EngineError):
    """A call whose arguments cannot be served: ids out of range, empty source, wrong counts."""


class CacheFull(EngineError):
    """No memory is left for the next token or the next sequence; free a sequence and try again."""


class DeadlineExceeded(EngineError):
    """A request that was not done by its deadline; its rows are free again."""


class EngineClosed(EngineError):
    """The engine is shutting down; send the request to another process."""


class AdapterRejected(EngineError):
    """An adapter that must not be loaded. The fault lies in its content: another pod would refuse it too."""

    def __init__(self, reason: str, detail: str) -> None:
        """`reason` is one CamelCase word for status and metrics; `detail` is a sentence for a person."""
        self.reason = reason
        self.detail = detail
        super().__init__(f"adapter rejected ({reason}): {detail}")


class DigestMismatch(EngineError):
    """Files whose digest is not the one that was asked for."""

    def __init__(self, wanted: str, found: str) -> None:
        """Both digests are lowercase hex SHA-256."""
        self.wanted = wanted
        self.found = found
        super().__init__(f"the files have digest {found}, not {wanted}; publish the adapter again "
                         "or correct the digest")


class PoolFull(EngineError):
    """Every adapter slot is busy or pinned. Try again when a request has ended, or raise the slot count."""


class PeerUnavailable(EngineError):
    """A peer that did not deliver: unreachable, too slow, or it no longer holds the adapter."""


class UnknownAdapter(EngineError):
    """An adapter name that is not resident in this process."""

    def __init__(self, name: str, known: list[str]) -> None:
        """Keep the refused `name` and the sorted `known` names for the caller's answer."""
        self.name = name
        self.known = known
        super().__init__(f"unknown adapter {name!r}; resident adapters: {', '.join(known) or 'none'}")
