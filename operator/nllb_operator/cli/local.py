"""`nllb-fleet local …`: commands on a fleet of this machine, in kubectl's manner.

Each command is a function of its parsed arguments: it talks to the daemon by `DaemonClient`, prints its
result to stdout and returns. Must not import the daemon, except to start it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from nllb_operator import machine
from nllb_operator.cli.client import CommandError, DaemonClient, StateFolder, ready_condition
from nllb_operator.cli.console import say, wait_for
from nllb_operator.cli.tables import Kind, kinds, rendered
from nllb_operator.naming import NLLB_DEPLOYMENT

_START_SECONDS = 30.0
_STOP_SECONDS = 120.0
_DAEMON = "nllb_operator.cli.daemon"


def up(arguments: argparse.Namespace) -> None:
    """Start the daemon, unless it runs already with these very options."""
    state = StateFolder.of(arguments.state)
    former = state.former_settings()
    settings = {
        "volumes": {**former["volumes"], **dict(_volume(text) for text in arguments.volume)},
        "gpus": former["gpus"] if arguments.gpus is None else arguments.gpus,
    }
    try:
        state.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        message = f"cannot create {state.path} ({error.strerror}); choose another folder with --state"
        raise CommandError(message) from None
    lock = state.lock()
    if lock is None:
        running = _running(state) or {}
        if {name: running.get(name) for name in settings} != settings:
            raise CommandError("the local fleet runs with other options; `nllb-fleet local down` first")
        print(f"already running (pid {running['pid']}, state in {state.path})")
        return
    machine.write_atomically(state.settings, json.dumps(settings))
    if arguments.foreground:
        from nllb_operator.cli import daemon

        daemon.main([str(state.path), str(lock)])
        return
    pid = _start_in_background(state, lock)
    print(f"local operator runs (pid {pid}, state in {state.path})")
    print("next: nllb-fleet local apply -f examples/nllbdeployment.yaml")


def _start_in_background(state: StateFolder, lock: int) -> int:
    with state.log.open("ab") as log:
        offset = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", _DAEMON, str(state.path), str(lock)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, cwd="/", pass_fds=(lock,),
        )  # fmt: skip
    os.close(lock)
    client = DaemonClient(state)
    wait_for(
        lambda: process.poll() is not None or client.health() is not None,
        lambda: "the local operator is starting",
        _START_SECONDS,
    )
    if process.poll() is not None or client.health() is None:
        process.kill()
        process.wait()
        raise CommandError(
            f"the local operator did not start:\n{machine.tail(state.log, offset) or state.log}"
        )
    return process.pid


def _running(state: StateFolder) -> dict[str, Any] | None:
    """The daemon's health, None if there is none. One that is just starting is waited for."""
    client = DaemonClient(state)
    wait_for(
        lambda: client.health() is not None or not state.is_taken,
        lambda: "the local operator is starting",
        _START_SECONDS,
    )
    return client.health()


def _volume(text: str) -> tuple[str, str]:
    name, separator, folder = text.partition("=")
    path = Path(folder).expanduser().absolute()
    if not name or not separator or not folder:
        raise CommandError(
            f"--volume {text!r}: write NAME=FOLDER, where NAME is the claim that manifests mount"
        )
    if not path.is_dir():
        raise CommandError(f"--volume {text!r}: there is no folder {path}")
    return name, str(path)


def down(arguments: argparse.Namespace) -> None:
    """Stop the daemon and its pods; with --purge delete the state folder, too."""
    state = StateFolder.of(arguments.state)
    client, running = DaemonClient(state), _running(state)
    if running is None:
        print(f"no local fleet runs in {state.path}")
    else:
        client.down()
        pid = int(running["pid"])
        born = machine.birth(pid)
        if not wait_for(
            lambda: machine.birth(pid) != born, lambda: "pods finish their requests", _STOP_SECONDS
        ):
            raise CommandError(f"the local operator (pid {pid}) does not end; its log is {state.log}")
        print("local operator and pods stopped")
    if arguments.purge and state.path.exists():
        if not state.settings.exists():
            raise CommandError(f"{state.path} does not look like the state of a local fleet; not deleted")
        shutil.rmtree(state.path)
        print(f"deleted {state.path}")


def apply(arguments: argparse.Namespace) -> None:
    """Create or change every object in the files."""
    client = _client(arguments)
    failures = 0
    for place, manifest in _manifests(arguments.filename):
        try:
            done = client.apply(manifest, arguments.namespace)
        except CommandError as error:
            say(f"error: {place}: {error}")
            failures += 1
            continue
        body = done["object"]
        print(f"{_kind_of(body['kind']).label(body['metadata']['name'])} {done['outcome']}")
    if failures:
        raise SystemExit(1)


def get(arguments: argparse.Namespace) -> None:
    """Show objects."""
    client = _client(arguments)
    wanted = arguments.what or ["nllb,lora,pods"]
    blocks = []
    for kind, names in _named(wanted):
        bodies = _bodies(client, kind, arguments.namespace)
        if names:
            bodies = [_by_name(kind, bodies, name) for name in names]
        if bodies:
            blocks.append(rendered(kind, bodies, arguments.output))
    if not blocks:
        say(f"nothing found in namespace {arguments.namespace}")
    print(("\n---\n" if arguments.output == "yaml" else "\n\n").join(blocks))


def delete(arguments: argparse.Namespace) -> None:
    """Delete objects, named or from files, with everything they own."""
    client = _client(arguments)
    if arguments.filename:
        manifests = [manifest for _, manifest in _manifests(arguments.filename)]
        targets = [
            (
                _kind_of(str(m.get("kind"))),
                m["metadata"].get("namespace", arguments.namespace),
                m["metadata"]["name"],
            )
            for m in manifests
        ]
    else:
        named = _named(arguments.what)
        targets = [(kind, arguments.namespace, name) for kind, names in named for name in names]
    if not targets:
        raise CommandError("say what to delete: -f FILE, or TYPE NAME")
    for kind, namespace, name in targets:
        deleted = client.delete(kind.kind, namespace, name)
        print(f"{kind.label(name)} {'deleted' if deleted else 'not found'}")


def wait(arguments: argparse.Namespace) -> None:
    """Wait until a condition of the objects is True, or until they are gone."""
    client = _client(arguments)
    gone = arguments.condition == "delete"
    condition = arguments.condition.removeprefix("condition=")
    for kind, names in _named(arguments.what):
        for name in names:

            def present(kind: Kind = kind, name: str = name) -> dict[str, Any] | None:
                bodies = _bodies(client, kind, arguments.namespace)
                return next((body for body in bodies if body["metadata"]["name"] == name), None)

            def done() -> bool:
                body = present()
                return body is None if gone else _is_true(body, condition)

            def state() -> str:
                found = ready_condition(present() or {}, condition)
                return f"{found.get('reason', 'Unknown')}: {found.get('message', 'no status yet')}"

            if not wait_for(done, state, arguments.timeout):
                raise CommandError(f"{kind.label(name)}: not {arguments.condition} in time: {state()}")
            print(f"{kind.label(name)} {'gone' if gone else 'condition met'}")


def _is_true(body: dict[str, Any] | None, condition: str) -> bool:
    if body is None or body["metadata"].get("deletionTimestamp"):
        return False
    found = ready_condition(body, condition)
    observed = found.get("observedGeneration", body.get("status", {}).get("observedGeneration"))
    return found.get("status") == "True" and observed in (None, body["metadata"].get("generation"))


def logs(arguments: argparse.Namespace) -> None:
    """Print what a pod's process wrote."""
    state = StateFolder.of(arguments.state)
    file = state.pod_log(arguments.namespace, arguments.pod)
    if not file.exists():
        raise CommandError(f"there is no pod {arguments.pod}; `nllb-fleet local get pods` lists them")
    sys.stdout.write(file.read_text(encoding="utf-8", errors="replace"))


def endpoint(arguments: argparse.Namespace) -> str:
    """The URL of the fleet named by --fleet, or of the only one there is."""
    fleets = _client(arguments).objects(NLLB_DEPLOYMENT, arguments.namespace)
    names = [fleet["metadata"]["name"] for fleet in fleets]
    if arguments.fleet is None and len(names) != 1:
        known = f"one of {', '.join(names)}" if names else "after `nllb-fleet local apply -f FILE`"
        raise CommandError(f"say which fleet is to translate: --fleet {known}")
    wanted = arguments.fleet or names[0]
    if wanted not in names:
        raise CommandError(f"there is no fleet {wanted!r} (known: {', '.join(names) or 'none'})")
    url = fleets[names.index(wanted)].get("status", {}).get("endpoint")
    if not url:
        raise CommandError(f"fleet {wanted} has no endpoint yet; `nllb-fleet local wait nllb/{wanted}`")
    return str(url)


def _client(arguments: argparse.Namespace) -> DaemonClient:
    return DaemonClient(StateFolder.of(arguments.state))


def _bodies(client: DaemonClient, kind: Kind, namespace: str) -> list[dict[str, Any]]:
    if kind.kind == "Event":
        return client.events(namespace)
    return client.objects(kind.kind, namespace)


def _by_name(kind: Kind, bodies: list[dict[str, Any]], name: str) -> dict[str, Any]:
    for body in bodies:
        if body["metadata"]["name"] == name:
            return body
    known = ", ".join(body["metadata"]["name"] for body in bodies) or "none"
    raise CommandError(f"{kind.label(name)} not found (known: {known})")


def _named(words: list[str]) -> list[tuple[Kind, list[str]]]:
    """Kinds with names from `TYPE[,TYPE] [NAME…]` or `TYPE/NAME …`."""
    if any("/" in word for word in words):
        pairs = [word.partition("/") for word in words]
        if not all(name for _, _, name in pairs):
            raise CommandError("either TYPE/NAME for each, or TYPE followed by names")
        return [(_kind_of(kind), [name]) for kind, _, name in pairs]
    return [(_kind_of(word), words[1:]) for word in words[0].split(",") if word] if words else []


def _kind_of(word: str) -> Kind:
    for kind in kinds():
        if word.lower() in kind.words or word == kind.kind:
            return kind
    known = ", ".join(min(kind.words, key=len) for kind in kinds())
    raise CommandError(f"{word!r} is not a type that a local fleet has (types: {known})")


def _manifests(files: list[str]) -> Iterator[tuple[str, Any]]:
    """Every document of the YAML files, with its place for messages; `-` is stdin."""
    for name in files:
        try:
            text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
            documents = [document for document in yaml.safe_load_all(text) if document is not None]
        except OSError as error:
            raise CommandError(f"{name}: {error.strerror}") from None
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise CommandError(f"{name} is not YAML: {error}") from None
        if not documents:
            raise CommandError(f"{name} holds no object")
        for document in documents:
            yield name, document
