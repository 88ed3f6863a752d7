"""What a local fleet accepts: what the API server accepts, with the same defaults. See `bad_objects`."""

import copy

import pytest
from bad_objects import ADAPTER, BAD_OBJECTS, FLEET, GOOD_OBJECTS, Body

from nllb_operator.backends.local.admission import Refused, admitted, located


@pytest.mark.parametrize("body", BAD_OBJECTS.values(), ids=BAD_OBJECTS.keys())
def test_a_bad_object_is_refused_in_words(body: Body) -> None:
    with pytest.raises(Refused) as refusal:
        admitted(located(body, "default"))
    assert body["metadata"]["name"] in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("body", GOOD_OBJECTS.values(), ids=GOOD_OBJECTS.keys())
def test_a_good_object_is_accepted_and_left_alone(body: Body) -> None:
    before = copy.deepcopy(body)
    complete = admitted(located(body, "default"))
    assert body == before
    assert admitted(complete) == complete


def test_defaults_are_those_of_the_schema() -> None:
    spec = admitted(FLEET)["spec"]
    assert spec["gpu"] == {"resourceName": "nvidia.com/gpu", "count": 1}
    assert spec["replicas"] == 1
    assert spec["engine"]["device"] == "auto"
    assert admitted(ADAPTER)["spec"]["pinned"] is False


@pytest.mark.parametrize("name", ["", "Upper", "with space", "a" * 254, None, 7])
def test_a_name_that_kubernetes_would_not_take_is_refused(name: object) -> None:
    with pytest.raises(Refused, match=r"metadata\.name"):
        located({**ADAPTER, "metadata": {"name": name}}, "default")


def test_an_object_without_a_namespace_gets_the_commands() -> None:
    body = {**ADAPTER, "metadata": {"name": "a"}}
    assert located(body, "team")["metadata"]["namespace"] == "team"


@pytest.mark.parametrize("thing", [None, [], "text", {}, {"metadata": "a"}])
def test_what_is_no_object_is_refused(thing: object) -> None:
    with pytest.raises(Refused, match="not an object"):
        located(thing, "default")


@pytest.mark.parametrize(
    ("field", "value"),
    [("ownerReferences", "x"), ("ownerReferences", [{"name": "x"}]), ("labels", [1]), ("labels", {"a": 1}),
     ("annotations", 5), ("finalizers", 3)],
)  # fmt: skip
def test_metadata_that_no_api_server_takes_is_refused(field: str, value: object) -> None:
    with pytest.raises(Refused, match=f"metadata.{field}"):
        located({**ADAPTER, "metadata": {**ADAPTER["metadata"], field: value}}, "default")
