from typing import Any

from operator_objects import NOW, Objects, digest_of

from nllb_operator.adapter_status import PodReport, adapter_status
from nllb_operator.wanted import AdapterView
from nllb_server.wire import InventoryAdapter


class Scene:
    """A fleet of `replicas` pods, one adapter, and what each pod says about it."""

    def __init__(self, make: Objects, replicas: int = 2, **adapter: Any) -> None:
        self.make = make
        self.replicas = replicas
        self.adapter = adapter
        self.status: dict[str, Any] | None = None
        self.generation = 1

    def view(self, **changes: Any) -> AdapterView:
        self.adapter |= changes
        body = self.make.adapter_body("polite", status=self.status, **self.adapter)
        body["metadata"]["generation"] = self.generation
        return self.make.views(body)[0]

    def look(self, *entries: InventoryAdapter | None, **pod: Any) -> dict[str, Any]:
        """The status when there is one pod per entry; None: it does not answer."""
        view, reports = self.view(), []
        for number, entry in enumerate(entries):
            name = f"pod-{number}"
            inventory = None if entry is None else self.make.inventory(name, entry)
            reports.append(PodReport(self.make.pod(name=name, **pod), inventory, chosen=True))
        deployment = self.make.deployment(replicas=self.replicas)
        self.status = adapter_status(view, deployment, reports, NOW)
        return self.status

    def entry(self, state: str, **values: Any) -> InventoryAdapter:
        return self.make.entry(self.view(), state, **values)


def ready(status: dict[str, Any]) -> tuple[str, str]:
    (condition,) = (item for item in status["conditions"] if item["type"] == "Ready")
    return condition["status"], condition["reason"]


def progressing(status: dict[str, Any]) -> str:
    (condition,) = (item for item in status["conditions"] if item["type"] == "Progressing")
    return str(condition["status"])


def message(status: dict[str, Any]) -> str:
    return str(status["conditions"][0]["message"])


def test_ready_the_first_time_means_everywhere(make: Objects) -> None:
    scene = Scene(make)
    one = scene.look(scene.entry("Stored", source="origin"), scene.entry("Fetching"))
    assert ready(one) == ("False", "Spreading") and progressing(one) == "True"

    both = scene.look(scene.entry("Stored", source="origin"), scene.entry("Loaded", source="peer"))

    assert ready(both) == ("True", "Resident") and progressing(both) == "False"
    assert (both["fetchedFromOrigin"], both["fetchedFromPeers"]) == (1, 1)
    assert (both["desiredReplicas"], both["readyReplicas"]) == (2, 2)
    assert (both["bytes"], both["rank"]) == (1000, 4)
    assert both["version"] == digest_of("polite")[:12]
    assert both["lastReady"]["deployment"] == "fleet"


def test_a_scale_out_leaves_a_serving_adapter_ready(make: Objects) -> None:
    scene = Scene(make)
    scene.look(scene.entry("Loaded"), scene.entry("Loaded"))
    scene.replicas = 3

    status = scene.look(scene.entry("Loaded"), scene.entry("Loaded"))

    assert ready(status) == ("True", "Resident") and progressing(status) == "True"
    assert (status["readyReplicas"], status["desiredReplicas"]) == (2, 3)


def test_a_serving_pod_that_lost_the_adapter_makes_it_unready(make: Objects) -> None:
    scene = Scene(make)
    scene.look(scene.entry("Loaded"), scene.entry("Loaded"))

    status = scene.look(scene.entry("Loaded"), scene.entry("Absent"))

    assert ready(status) == ("False", "Spreading")


def test_a_ready_adapter_without_any_ready_pod_is_not_ready(make: Objects) -> None:
    scene = Scene(make)
    scene.look(scene.entry("Loaded"), scene.entry("Loaded"))

    status = scene.look(scene.entry("Loaded"), scene.entry("Loaded"), ready=False)

    assert ready(status) == ("False", "NoReadyPods")


def test_a_fleet_scaled_to_zero_says_so(make: Objects) -> None:
    scene = Scene(make, replicas=0)

    assert ready(scene.look()) == ("False", "NoPods")


def test_refused_content_is_told_in_the_pods_own_words(make: Objects) -> None:
    scene = Scene(make)
    failed = make.failed(scene.view(), "content", "DigestMismatch")

    status = scene.look(failed, scene.entry("Absent"))

    assert ready(status) == ("False", "DigestMismatch") and progressing(status) == "False"
    assert "it is DigestMismatch" in message(status)
    assert status["exceptions"] == [
        {"pod": "pod-0", "reason": "DigestMismatch", "message": "it is DigestMismatch"}
    ]
    assert status["failedReplicas"] == 1


def test_a_failure_stays_told_while_the_pod_is_at_it_again(make: Objects) -> None:
    scene = Scene(make)
    for fault in ("content", "pod"):
        failed = make.failed(scene.view(), fault)
        again = failed.model_copy(update={"state": "Fetching"})

        first = scene.look(failed, scene.entry("Absent"))

        assert scene.look(again, scene.entry("Absent")) == first, "no write and no event per attempt"


def test_one_bad_pod_of_many_is_named_while_the_others_go_on(make: Objects) -> None:
    scene = Scene(make, replicas=3)
    failed = make.failed(scene.view(), "pod", "DiskError")

    status = scene.look(scene.entry("Loaded"), scene.entry("Loaded"), failed)

    assert ready(status) == ("False", "Spreading") and progressing(status) == "True"
    assert [item["pod"] for item in status["exceptions"]] == ["pod-2"]


def test_when_nobody_gets_it_the_failure_is_the_reason(make: Objects) -> None:
    scene = Scene(make)
    failed = make.failed(scene.view(), "pod", "OriginUnavailable")

    status = scene.look(failed, scene.entry("Absent"))

    assert ready(status) == ("False", "OriginUnavailable") and progressing(status) == "True"


def test_a_pinned_adapter_must_be_in_a_slot(make: Objects) -> None:
    scene = Scene(make, replicas=1, pinned=True)

    waiting = scene.look(scene.entry("Stored"))
    assert ready(waiting) == ("False", "WaitingForSlot")
    assert "raise adapters.slots" in message(waiting)
    assert ready(scene.look(scene.entry("Loaded"))) == ("True", "Resident")


def test_a_new_version_is_stale_on_pods_that_still_hold_the_previous_one(make: Objects) -> None:
    scene = Scene(make)
    scene.look(scene.entry("Loaded"), scene.entry("Loaded"))
    old = scene.entry("Loaded")
    scene.generation = 2
    scene.view(source={"uri": "pvc://models/v2", "sha256": digest_of("v2")})

    status = scene.look(scene.entry("Loaded"), old)

    assert ready(status) == ("False", "Spreading")
    assert "the previous version stays in use" in message(status)
    assert (status["readyReplicas"], status["staleReplicas"]) == (1, 1)
    assert status["lastReady"]["digest"] == digest_of("polite"), "still what was Ready last"


def test_an_observed_digest_is_kept_with_its_uri(make: Objects) -> None:
    body = make.adapter_body("polite", source={"uri": "pvc://models/p"}, status={
        "digest": digest_of("seen"), "digestUri": "pvc://models/p",
    })  # fmt: skip
    (view,) = make.views(body)

    status = adapter_status(view, make.deployment(), [], NOW)

    assert (status["digest"], status["digestSource"]) == (digest_of("seen"), "Observed")
    assert status["digestUri"] == "pvc://models/p"


def test_looking_again_at_the_same_facts_changes_nothing(make: Objects) -> None:
    scene = Scene(make)
    entries = (scene.entry("Loaded", source="origin"), None)
    first = scene.look(*entries)

    assert scene.look(*entries) == first


def test_a_name_conflict_keeps_what_was_known(make: Objects) -> None:
    old = make.adapter_body("old", servedName="polite", age=5)
    young = make.adapter_body("young", servedName="polite", status={"digest": digest_of("x"), "rank": 8})
    _, view = make.views(old, young)

    status = adapter_status(view, make.deployment(), [], NOW)

    assert ready(status) == ("False", "NameConflict")
    assert (status["digest"], status["rank"], status["readyReplicas"]) == (digest_of("x"), 8, 0)


def test_pods_that_cannot_run_do_not_keep_an_adapter_from_being_ready(make: Objects) -> None:
    scene = Scene(make, replicas=2)
    view = scene.view()
    serving = PodReport(make.pod(name="a"), make.inventory("a", scene.entry("Loaded")), chosen=True)
    pending = make.pod(ready=False, phase="Pending", reason="Unschedulable", control_addr=None)
    starting = make.pod(ready=False, phase="Pending", control_addr=None)
    deployment = make.deployment(replicas=2)

    stuck = adapter_status(view, deployment, [serving, PodReport(pending, None, chosen=True)], NOW)
    early = adapter_status(view, deployment, [serving, PodReport(starting, None, chosen=True)], NOW)

    assert ready(stuck) == ("True", "Resident") and "1 cannot run" in message(stuck)
    assert ready(early) == ("False", "Spreading")
