"""The commands' side of the local fleet's socket: small synchronous calls to the daemon, see `daemon`.

Knows the folder of a local fleet (where its socket, log and settings are) and how to say that nothing runs
there. Must not import the daemon, or anything that takes long to load.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

_SOCKET_PATH_LIMIT = 100  # the kernel's limit is 107 bytes
_ANSWER_SECONDS = 30.0


class CommandError(Exception):
    """The command cannot do what it was asked for; the message says what to do about it."""


@dataclass(frozen=True)
class StateFolder:
    """Where a local fleet keeps itself."""

    path: Path

    @classmethod
    def of(cls, text: str | None) -> StateFolder:
        """The folder a user named, else `~/.nllb-fleet`. CommandError if the path is too long."""
        path = Path(text).expanduser().absolute() if text else Path.home() / ".nllb-fleet"
        folder = cls(path)
        if len(os.fsencode(folder.socket)) > _SOCKET_PATH_LIMIT:
            raise CommandError(f"{path} is too long for a Unix socket; choose a shorter one with --state")
        return folder

    @property
    def socket(self) -> Path:
        """The daemon's Unix socket."""
        return self.path / "socket"

    @property
    def log(self) -> Path:
        """What the daemon wrote."""
        return self.path / "log"

    def lock(self) -> int | None:
        """Take the folder for a daemon: a handle that holds its lock. None: a daemon lives or starts."""
        handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        return handle

    @property
    def is_taken(self) -> bool:
        """Whether a daemon lives here, or is about to."""
        handle = self.lock() if self.path.is_dir() else None
        if handle is not None:
            os.close(handle)
        return handle is None and self.path.is_dir()

    @property
    def settings(self) -> Path:
        """The options of the last `up`: volumes and GPUs."""
        return self.path / "settings.json"

    def former_settings(self) -> dict[str, Any]:
        """The options of the last `up`, none at first. CommandError if their file is damaged."""
        try:
            found = json.loads(self.settings.read_text(encoding="utf-8"))
            return {"volumes": dict(found["volumes"]), "gpus": int(found["gpus"])}
        except (FileNotFoundError, NotADirectoryError):
            return {"volumes": {}, "gpus": 0}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CommandError(
                f"{self.settings} cannot be read ({error}); remove it and name --volume and --gpus again"
            ) from None

    def pod_log(self, namespace: str, pod: str) -> Path:
        """What a pod's process wrote."""
        return self.path / "pods" / f"{namespace}.{pod}" / "log"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_ANSWER_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class DaemonClient:
    """Calls to the daemon of one state folder. Every method raises CommandError with the daemon's message."""

    def __init__(self, state: StateFolder) -> None:
        """Connects per call, so a restarted daemon is found again."""
        self.state = state

    def health(self) -> dict[str, Any] | None:
        """The daemon's pid, volumes and GPUs; None if none runs."""
        try:
            found: dict[str, Any] = self._send("GET", "/health")
        except (FileNotFoundError, ConnectionError):
            return None
        return found

    def objects(self, kind: str, namespace: str) -> list[dict[str, Any]]:
        """All objects of a kind in a namespace, the oldest first."""
        found: list[dict[str, Any]] = self._call(
            "GET", f"/objects/{kind}?{urlencode({'namespace': namespace})}"
        )
        return found

    def events(self, namespace: str) -> list[dict[str, Any]]:
        """The last events, the oldest first."""
        found: list[dict[str, Any]] = self._call("GET", f"/events?{urlencode({'namespace': namespace})}")
        return found

    def apply(self, manifest: Any, namespace: str) -> dict[str, Any]:
        """Create or change an object; `outcome` is created, configured or unchanged, `object` the result."""
        done: dict[str, Any] = self._call("POST", f"/objects?{urlencode({'namespace': namespace})}", manifest)
        return done

    def delete(self, kind: str, namespace: str, name: str) -> bool:
        """Delete an object with what it owns; False if there is none."""
        path = "/".join(quote(part, safe="") for part in (kind, namespace, name))
        return bool(self._call("DELETE", f"/objects/{path}")["deleted"])

    def down(self) -> None:
        """Ask the daemon to stop its pods and to end. Returns at once."""
        self._call("POST", "/down")

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        try:
            return self._send(method, path, body)
        except (FileNotFoundError, ConnectionError):
            raise CommandError(
                f"no local fleet runs in {self.state.path}; start one with `nllb-fleet local up`"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise CommandError(
                f"the local fleet did not answer ({error}); its log is {self.state.log}"
            ) from None

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        try:
            content = None if body is None else json.dumps(body, default=str)
        except (ValueError, RecursionError, TypeError) as error:
            raise CommandError(f"the object cannot be sent: {error}") from None
        connection = _UnixConnection(self.state.socket)
        try:
            connection.request(method, path, content, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            answer = _decoded(reply.read())
        finally:
            connection.close()
        if reply.status >= 400:
            raise CommandError(answer.get("error") or f"the local fleet answered {reply.status}")
        return answer


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return {}


def ready_condition(body: Mapping[str, Any], kind: str = "Ready") -> Mapping[str, Any]:
    """The condition of this type in an object's status, empty if there is none."""
    conditions = body.get("status", {}).get("conditions", ())
    return next((condition for condition in conditions if condition["type"] == kind), {})
