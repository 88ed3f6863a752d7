"""Where the demo plays: what the story needs of a fleet, and how a command line is shown and run.

Must not know the story.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1]
REPOSITORY = EXAMPLES.parent


class DemoFailed(Exception):
    """Something the demo promises did not happen; the message says what, and where to look."""


@dataclass(frozen=True)
class Pod:
    """A pod of the fleet. Addresses are `host:port`, None until it has them."""

    name: str
    ready: bool
    http: str | None
    control: str | None


class Stage(ABC):
    """A place for a fleet, and the commands by which a user would drive it."""

    def apply(self, file: Path, edit: tuple[str, str] | None = None) -> None:
        """Apply a YAML file of `examples/`; `edit`: after replacing the one text by the other."""
        text, note = file.read_text(encoding="utf-8"), ""
        if edit is not None:
            if text.count(edit[0]) < 1:
                raise DemoFailed(f"{file} does not say {edit[0]!r}")
            text, note = text.replace(*edit), f"    # edited: {edit[1]}"
        self.apply_text(text, f"-f {file.relative_to(REPOSITORY)}{note}")

    @abstractmethod
    def set_up(self) -> None:
        """Bring the place up, with the operator running in it."""

    @abstractmethod
    def apply_text(self, text: str, shown: str) -> None:
        """Apply YAML, under a command line that ends in `apply SHOWN`."""

    @abstractmethod
    def wait_ready(self, *names: str) -> None:
        """Wait until `kind/name` objects are Ready."""

    @abstractmethod
    def show(self) -> None:
        """Print the fleet, its adapters and pods as the user's tool shows them."""

    @abstractmethod
    def object(self, kind: str, name: str) -> Mapping[str, Any]:
        """An object, as it is now."""

    @abstractmethod
    def pods(self) -> list[Pod]:
        """The fleet's pods that are not on their way out."""

    @abstractmethod
    def endpoints(self) -> list[str]:
        """URLs at which requests are answered now."""

    @abstractmethod
    def delete(self) -> None:
        """Delete the fleet and its adapter, and wait until their pods are gone."""

    @abstractmethod
    def logs(self) -> list[Path]:
        """Files that tell why something went wrong."""

    @abstractmethod
    def clean_up(self) -> None:
        """End and remove everything. Called once, whatever happened before."""


def say(text: str = "") -> None:
    """A line for the person who watches. DemoFailed once when nobody watches any more, as in `… | head`."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise DemoFailed("nobody reads the output") from None


def run(
    command: Sequence[str | Path],
    *,
    shown: str | None = None,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
) -> str:
    """Run a command, after printing it as `$ shown`, and return its output. DemoFailed if it fails.

    What a shown command writes to stderr, such as its progress, is seen as it comes.
    """
    if shown is not None:
        say(f"$ {shown}")
    done = subprocess.run(
        [str(part) for part in command],
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if shown is None else None,
        text=True,
        env=env,
    )
    if done.returncode:
        why = (done.stderr or done.stdout).strip()
        raise DemoFailed(f"`{shown or ' '.join(map(str, command))}` failed: {why or 'see above'}")
    return done.stdout


def until(what: str, done: Callable[[], bool], seconds: float) -> None:
    """Poll until `done`. DemoFailed says what was waited for."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise DemoFailed(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.1)
