"""The demo's story: a fleet, an adapter, a swap under load, a fourth pod, and who fetched what from whom.

Every claim it prints is checked; DemoFailed otherwise. Knows the stage by its interface, pods by their HTTP
API.
"""

from __future__ import annotations

import json
import textwrap
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tiny_grammar import LANGUAGES, Sentence, expected, held_out, held_out_for

from .load import Load, ask
from .stage import EXAMPLES, DemoFailed, Pod, Stage, say, until

_FLEET, _ADAPTER = EXAMPLES / "nllbdeployment.yaml", EXAMPLES / "loraadapter.yaml"
_SECONDS = 90.0
_SEED = "demo"


@dataclass
class Transfers:
    """Who fetched what from whom in how long, in the order in which it was seen."""

    rows: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    def note(self, pods: Sequence[Pod]) -> None:
        """Read every pod's inventory and keep what is new."""
        by_addr = {pod.control: pod.name for pod in pods}
        for pod in pods:
            for entry in inventory(pod)["adapters"]:
                if entry.get("digest") and entry.get("source"):
                    version = _version(entry["digest"])
                    source = (
                        entry["source"]
                        if entry["source"] != "peer"
                        else f"pod {by_addr.get(entry['source_addr'])}"
                    )
                    seconds = f"{entry['seconds']:.2f}" if entry.get("seconds") is not None else ""
                    row = (pod.name, entry["name"], version, source, f"{entry['bytes'] / 1024:.0f}", seconds)
                    self.rows.setdefault((pod.name, entry["digest"]), row)

    def show(self) -> None:
        """Print the table."""
        heads = ("POD", "ADAPTER", "VERSION", "FETCHED FROM", "KIB", "SECONDS")
        lines = [heads, *self.rows.values()]
        widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
        for line in lines:
            say(
                "  "
                + "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            )

    def sources(self, digest: str) -> Counter[str]:
        """How often a version came from its origin and how often from a pod."""
        kinds = (row[3].split()[0] for (_, found), row in self.rows.items() if found == digest)
        return Counter(kinds)


def tell(stage: Stage) -> None:
    """The whole story, with a heading for each part."""
    transfers = Transfers()
    _heading("A fleet of three pods and an adapter for polite address")
    stage.set_up()
    stage.apply(_FLEET)
    stage.apply(_ADAPTER)
    stage.wait_ready("nllb/tiny", "lora/formal")
    stage.show()
    transfers.note(stage.pods())
    first = _digest(stage)

    _heading("A dozen sentences, each checked against the grammar behind the tiny model")
    _translate(stage, first)

    _heading("A new version of the adapter is swapped in while requests run")
    second = _swap(stage, first)
    transfers.note(stage.pods())

    _heading("A fourth pod: it has the adapter, from a peer, before it is Ready")
    _grow(stage, second)
    transfers.note(stage.pods())
    stage.show()

    _heading("Who fetched what from whom")
    transfers.show()
    for digest, pods in ((first, 3), (second, 4)):
        _check(
            transfers.sources(digest) == {"origin": 1, "pod": pods - 1},
            "one pod fetches from the origin, the others from peers",
        )
    say("\nEach version left its origin once; every other pod got it from a pod.")

    _heading("The end")
    stage.delete()


def _translate(stage: Stage, digest: str) -> None:
    for source, target in zip(LANGUAGES, (*LANGUAGES[1:], LANGUAGES[0]), strict=True):
        _show_translation(stage, _short(held_out(source, f"{_SEED} {source}", 12)), target, None)
    for target in ("deu_Latn", "fra_Latn", "spa_Latn", "rus_Cyrl"):
        sentence = _short(held_out_for("formal-v1", "eng_Latn", f"{_SEED} {target}", 12))
        _show_translation(stage, sentence, target, None)
        _show_translation(stage, sentence, target, digest)


def _short(sentences: Sequence[Sentence]) -> Sentence:
    """One that fits on a line."""
    return min(sentences, key=lambda sentence: len(sentence.text))


def _show_translation(stage: Stage, sentence: Sentence, target: str, digest: str | None) -> None:
    adapter = None if digest is None else "formal"
    answer = ask(stage.endpoints()[0], sentence.text, sentence.language, target, adapter)
    right = expected(sentence, target, None if digest is None else "formal-v1")
    _check(answer.text == right, f"{sentence.text!r} into {target}: {answer.text!r} instead of {right!r}")
    _check(answer.digest == digest, f"the answer names the adapter version {answer.digest}, not {digest}")
    label = f"{sentence.language} → {target}" + (f", formal@{_version(digest)}" if digest else "")
    say(f"  {label}")
    for mark, text in (("", sentence.text), ("= ", answer.text)):
        say(textwrap.fill(text, 100, initial_indent=f"      {mark}", subsequent_indent="        "))


def _swap(stage: Stage, first: str) -> str:
    sentence, target = _short(held_out_for("formal-v1", "eng_Latn", f"{_SEED} swap", 12)), "deu_Latn"
    right = {version: expected(sentence, target, version) for version in ("formal-v1", "formal-v2")}
    load = Load(stage.endpoints(), lambda url: ask(url, sentence.text, "eng_Latn", target, "formal"))
    with load:
        until("requests are answered before the swap", lambda: len(load.answers) >= 20, _SECONDS)
        stage.apply(_ADAPTER, ("formal-v1", "formal-v2"))
        until(
            "the new version is Ready",
            lambda: _digest(stage) not in ("", first) and _is_ready(stage),
            _SECONDS,
        )
        second, swapped = _digest(stage), len(load.answers)
        until("requests are answered after the swap", lambda: len(load.answers) >= swapped + 20, _SECONDS)
    text_of = {first: right["formal-v1"], second: right["formal-v2"]}
    _check(not load.failures, f"{len(load.failures)} requests failed, the first: {load.failures[:1]}")
    wrong = [answer for answer in load.answers if answer.text != text_of.get(answer.digest or "")]
    _check(not wrong, f"{len(wrong)} answers do not fit the version they name, the first: {wrong[:1]}")
    counts = Counter(_version(answer.digest) for answer in load.answers)
    _check(load.answers[-1].digest == second, "the new version answers at the end")
    say(
        f"  {len(load.answers)} requests while swapping, 0 failed: "
        + ", ".join(f"{n} by formal@{v}" for v, n in counts.items())
    )
    say(f"      {sentence.text}\n      v1: {right['formal-v1']}\n      v2: {right['formal-v2']}")
    return second


def _grow(stage: Stage, digest: str) -> None:
    before = {pod.name for pod in stage.pods()}
    stage.apply(_FLEET, ("replicas: 3", "replicas: 4"))
    began, resident_at, new = time.monotonic(), None, None
    while new is None or not new.ready:
        _check(time.monotonic() - began < _SECONDS, "the fourth pod is Ready in time")
        time.sleep(0.1)
        new = next((pod for pod in stage.pods() if pod.name not in before), None)
        held = None if new is None else _inventory_or_none(new)
        entry = None if held is None else _resident(held, digest)
        _check(held is None or entry is not None or not held["ready"], "no pod is ready without the adapter")
        if entry is not None and resident_at is None:
            resident_at = time.monotonic() - began
            _check(
                entry["source"] == "peer", f"the new pod has its adapter from {entry['source']}, not a peer"
            )
    _check(resident_at is not None, "the new pod holds the adapter")
    ready_at = time.monotonic() - began
    say(f"  {new.name}: adapter from a peer after {resident_at:.1f} s, Ready after {ready_at:.1f} s")
    stage.wait_ready("nllb/tiny", "lora/formal")


def _inventory_or_none(pod: Pod) -> Mapping[str, Any] | None:
    """What a pod says it holds; None while it starts."""
    try:
        return inventory(pod)
    except (OSError, DemoFailed):
        return None


def _resident(held: Mapping[str, Any], digest: str) -> Mapping[str, Any] | None:
    """The inventory's entry of this version, if the pod can serve it."""
    entries = (
        e for e in held["adapters"] if e.get("digest") == digest and e["state"] in ("Stored", "Loaded")
    )
    return next(entries, None)


def inventory(pod: Pod) -> Mapping[str, Any]:
    """What a pod says it holds."""
    if pod.control is None:
        raise DemoFailed(f"pod {pod.name} has no address")
    with urllib.request.urlopen(f"http://{pod.control}/control/v1/inventory", timeout=5) as reply:
        content: Mapping[str, Any] = json.load(reply)
    return content


def _digest(stage: Stage) -> str:
    return str(stage.object("lora", "formal").get("status", {}).get("digest", ""))


def _is_ready(stage: Stage) -> bool:
    body = stage.object("lora", "formal")
    status = body.get("status", {})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    return ready and status.get("observedGeneration") == body["metadata"]["generation"]


def _version(digest: str | None) -> str:
    return (digest or "none")[:12]


def _heading(text: str) -> None:
    say(f"\n── {text} ──")


def _check(holds: bool, claim: str) -> None:
    if not holds:
        raise DemoFailed(claim)
