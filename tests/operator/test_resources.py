import pytest
from operator_objects import Objects

from nllb_operator.resources import InvalidResource, LoraAdapter, NllbDeployment, volume_of


def test_what_is_left_out_has_its_default(make: Objects) -> None:
    spec = make.deployment().spec

    assert (spec.replicas, spec.gpu.count, spec.gpu.resource_name) == (1, 1, "nvidia.com/gpu")
    assert (spec.engine.device, spec.adapters.slots, spec.adapters.fanout) == ("auto", 8, 2)


def test_every_bad_field_is_named_at_once(make: Objects) -> None:
    body = make.deployment_body(replicas=-1, engine={"maxBatch": 0}, typo=1)

    with pytest.raises(InvalidResource) as error:
        NllbDeployment.from_body(body)

    message = str(error.value)
    assert "spec.replicas" in message
    assert "spec.engine.maxBatch" in message
    assert "spec.typo: unknown field" in message


def test_a_number_as_text_is_not_a_number(make: Objects) -> None:
    with pytest.raises(InvalidResource, match=r"spec\.replicas"):
        NllbDeployment.from_body(make.deployment_body(replicas="2"))


def test_an_error_about_a_uri_says_how_to_write_it(make: Objects) -> None:
    with pytest.raises(InvalidResource, match="write pvc://VOLUME/path/to/folder"):
        LoraAdapter.from_body(make.adapter_body(source={"uri": "s3://bucket/adapter"}))


def test_an_object_of_another_kind_is_refused_by_name(make: Objects) -> None:
    with pytest.raises(InvalidResource, match="expected a NllbDeployment"):
        NllbDeployment.from_body(make.adapter_body())


def test_the_served_name_is_the_objects_unless_the_spec_names_another(make: Objects) -> None:
    assert LoraAdapter.from_body(make.adapter_body("polite")).served_name == "polite"
    assert (
        LoraAdapter.from_body(make.adapter_body("polite", servedName="Formal.v2")).served_name == "Formal.v2"
    )


def test_only_a_pvc_uri_names_a_volume() -> None:
    assert volume_of("pvc://models/a/b") == "models"
    assert volume_of("file:///models/a") is None
