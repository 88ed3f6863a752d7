import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from kube_cluster import REPOSITORY, Kube
from kube_fleet import KubeFleet

from nllb_operator.resources import InvalidResource, LoraAdapter, NllbDeployment

FLEET = KubeFleet(None, "default")  # type: ignore[arg-type] - only its manifests are used
DEPLOYMENT, ADAPTER = FLEET.deployment(), FLEET.adapter("polite")

BAD: dict[str, tuple[dict[str, Any], str, Any]] = {
    "a name that no Service can have": (DEPLOYMENT, "metadata.name", "1st-fleet"),
    "a name that is too long": (DEPLOYMENT, "metadata.name", "f" * 64),
    "a model from nowhere": (DEPLOYMENT, "spec.model.uri", "s3://bucket/model"),
    "a model outside its volume": (DEPLOYMENT, "spec.model.uri", "pvc://models/../secrets"),
    "a model in a volume that is not there": (DEPLOYMENT, "spec.model.uri", "pvc://others/tiny-nllb"),
    "an image with a space": (DEPLOYMENT, "spec.image", "server 1"),
    "fewer than no pods": (DEPLOYMENT, "spec.replicas", -1),
    "no GPU and no CPU": (DEPLOYMENT, "spec", {**DEPLOYMENT["spec"], "gpu": {"count": 0}, "engine": {}}),
    "a resource without a domain": (DEPLOYMENT, "spec.gpu", {"resourceName": "gpu"}),
    "a device that is none": (DEPLOYMENT, "spec.engine.device", "tpu"),
    "a dtype that is none": (DEPLOYMENT, "spec.engine.dtype", "int4"),
    "a language that is none": (DEPLOYMENT, "spec.engine.defaultSource", "english"),
    "a batch of nothing": (DEPLOYMENT, "spec.engine.maxBatch", 0),
    "slots for nothing": (DEPLOYMENT, "spec.adapters.slots", 0),
    "a rank beyond reason": (DEPLOYMENT, "spec.adapters.maxRank", 4096),
    "nobody to send to": (DEPLOYMENT, "spec.adapters.fanout", 0),
    "a drain that is over at once": (DEPLOYMENT, "spec.drainSeconds", 1),
    "a label of ours": (DEPLOYMENT, "spec.podLabels", {"fleet.nllb.io/deployment": "other"}),
    "a volume without a claim": (DEPLOYMENT, "spec.volumes", [{"name": "models"}]),
    "a volume that could leave its folder": (DEPLOYMENT, "spec.volumes.0.name", "../models"),
    "a typo": (DEPLOYMENT, "spec.replica", 3),
    "an adapter from the web": (ADAPTER, "spec.source.uri", "https://example.org/adapter"),
    "an adapter outside its volume": (ADAPTER, "spec.source.uri", "pvc://models/adapters/.."),
    "an adapter of a whole volume": (ADAPTER, "spec.source.uri", "pvc://models"),
    "a digest that is too short": (ADAPTER, "spec.source.sha256", "abc123"),
    "a digest in capitals": (ADAPTER, "spec.source.sha256", "A" * 64),
    "a served name with a slash": (ADAPTER, "spec.servedName", "team/polite"),
    "a served name of nothing": (ADAPTER, "spec.servedName", ""),
    "a fleet that can have no such name": (ADAPTER, "spec.deploymentRef.name", "Fleet_1"),
    "an adapter on no pod": (ADAPTER, "spec.replicas", 0),
    "an adapter without a source": (ADAPTER, "spec", {"deploymentRef": {"name": "fleet"}}),
}


def changed(body: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(dict(body))
    place: Any = result
    *parents, last = path.split(".")
    for key in parents:
        place = place[int(key)] if key.isdigit() else place[key]
    place[last] = value
    return result


@pytest.mark.parametrize("case", BAD)
def test_what_makes_no_sense_is_refused_by_the_api_server_and_by_the_operator(kube: Kube, case: str) -> None:
    body, path, value = BAD[case]
    bad = changed(body, path, value)
    parse = NllbDeployment.from_body if body is DEPLOYMENT else LoraAdapter.from_body

    complaint = kube.refused("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(bad))
    with pytest.raises(InvalidResource):
        parse(bad)

    assert "is invalid" in complaint or "unknown field" in complaint or "strict decoding" in complaint


def test_the_sentences_of_refusals_say_what_to_write(kube: Kube) -> None:
    def complaint(case: str) -> str:
        body = yaml.safe_dump(changed(*BAD[case]))
        return kube.refused("apply", "--dry-run=server", "-f", "-", stdin=body)

    assert "write pvc://VOLUME/path/to/folder" in complaint("an adapter from the web")
    assert "engine.device must be cpu" in complaint("no GPU and no CPU")
    assert "starting with a letter" in complaint("a name that no Service can have")
    assert "not in volumes" in complaint("a model in a volume that is not there")


def test_the_examples_are_accepted_by_both(kube: Kube) -> None:
    for name, parse in (("nllbdeployment", NllbDeployment.from_body), ("loraadapter", LoraAdapter.from_body)):
        file = REPOSITORY / "examples" / f"{name}.yaml"
        kube.kubectl("apply", "--dry-run=server", "-f", str(file))
        parse(yaml.safe_load(file.read_text(encoding="utf-8")))


def test_the_defaults_of_the_api_server_are_those_of_the_operator(kube: Kube, fleet: KubeFleet) -> None:
    body = fleet.deployment()
    for optional in ("engine", "adapters", "drainSeconds"):
        del body["spec"][optional]
    fleet.apply(body)

    stored = NllbDeployment.from_body(fleet.get("nllb/fleet"))

    assert stored.spec == NllbDeployment.from_body(body).spec


def schemas(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child
        yield from schemas(child, f"{path}.{name}")
    if "items" in schema:
        yield from schemas(schema["items"], f"{path}[]")


def fields(kind: str) -> dict[str, Mapping[str, Any]]:
    crd = yaml.safe_load((REPOSITORY / "crds" / f"{kind}.yaml").read_text(encoding="utf-8"))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return dict(schemas(schema, kind))


@pytest.mark.parametrize("kind", ["nllbdeployments", "loraadapters"])
def test_every_field_says_what_it_is(kind: str) -> None:
    mute = [path for path, schema in fields(kind).items() if not schema.get("description")]

    assert mute == [f"{kind}.metadata"]


@pytest.mark.parametrize("kind", ["nllbdeployment", "loraadapter"])
def test_explain_reads_like_a_manual(kube: Kube, kind: str) -> None:
    text = kube.kubectl("explain", f"{kind}.spec", "--recursive")
    overview = kube.kubectl("explain", kind)

    assert "<no description>" not in kube.kubectl("explain", f"{kind}.spec")
    assert "nllb" in overview and "DESCRIPTION" in overview
    known = fields(f"{kind}s")
    for path in known:
        if path.startswith(f"{kind}s.spec."):
            assert path.split(".")[-1].removesuffix("[]") in text


def test_get_shows_what_a_person_asks_for(fleet: KubeFleet) -> None:
    fleet.apply(fleet.deployment(replicas=0), fleet.adapter("polite"))

    def columns(kind: str) -> list[str]:
        return fleet.kubectl("get", kind).splitlines()[0].split()

    assert columns("nllb") == ["NAME", "DESIRED", "READY", "UPDATED", "ADAPTERS", "STATUS", "AGE"]
    assert columns("lora") == [
        "NAME", "DEPLOYMENT", "VERSION", "DESIRED", "READY", "ORIGIN", "PEERS", "STATUS", "AGE",
    ]  # fmt: skip


def test_short_names_and_the_category_do_not_hide_each_other(fleet: KubeFleet) -> None:
    fleet.apply(fleet.deployment(replicas=0), fleet.adapter("polite"))

    def names(*words: str) -> list[str]:
        return sorted(fleet.kubectl("get", *words, "-o", "name").split())

    assert names("nllb") == names("nllb", "fleet") == ["nllbdeployment.fleet.nllb.io/fleet"]
    assert names("lora") == names("lora", "polite") == ["loraadapter.fleet.nllb.io/polite"]
    assert names("nllb-fleet") == names("nllb,lora")
