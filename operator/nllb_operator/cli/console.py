"""What commands say to a person: lines on stderr, and a sign of life when something takes longer than 2 s.

Must not know what is being waited for. Results go to stdout elsewhere; nothing here is meant for programs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_QUIET_SECONDS = 2.0
_POLL_SECONDS = 0.1


def say(text: str) -> None:
    """One line for the person, at once."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """Tells what is being waited for: nothing in the first two seconds, then each new state on a line."""

    def __init__(self) -> None:
        """The clock starts now."""
        self._began = time.monotonic()
        self._said: str | None = None

    def tell(self, state: str) -> None:
        """Say `state`, if it is new and the wait is long enough to be noticed."""
        elapsed = time.monotonic() - self._began
        if elapsed >= _QUIET_SECONDS and state != self._said:
            say(f"  {elapsed:4.0f} s  {state}")
            self._said = state


def wait_for(done: Callable[[], bool], state: Callable[[], str], seconds: float) -> bool:
    """Poll until `done`, telling `state` meanwhile. False: `seconds` have passed."""
    progress, deadline = Progress(), time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        progress.tell(state())
        time.sleep(_POLL_SECONDS)
    return True
