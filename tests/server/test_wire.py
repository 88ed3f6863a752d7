"""The wire format: strict towards users, lenient between versions of operator and pods."""

import pytest
from pydantic import ValidationError

from nllb_server.routes.bodies import describe
from nllb_server.wire import Inventory, Source, TranslateRequest, WantedAdapter, WantedSet

DIGEST = "ab" * 32


def adapter(name: str = "a", **fields: object) -> dict[str, object]:
    return {"name": name, "uid": "u", "generation": 1, "uri": "pvc://models/a", "digest": DIGEST, **fields}


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ('{"text": []}', "text.texts: List should have at least 1 item"),
        ('{"text": 5}', "text.text: Input should be a valid string"),
        ('{"text": ["a", 3]}', "text.texts.1: Input should be a valid string"),
        ('{"text": "a", "num_beams": "4"}', "num_beams: Input should be a valid integer"),
        ('{"text": "a", "num_beams": 0}', "num_beams: Input should be greater than or equal to 1"),
        ('{"text": "a", "nun_beams": 4}', "nun_beams: Extra inputs are not permitted"),
        ('{"text": "a", "length_penalty": NaN}', "length_penalty: Input should be a finite number"),
        ('{"text": "a", "num_return_sequences": 2}', "must not exceed num_beams"),
        ('{"text": "a"', "Invalid JSON"),
        ('{"text": "\\ud800"}', "Invalid JSON"),
        ("[]", "Input should be an object"),
        ("", "Invalid JSON"),
    ],
)
def test_a_request_that_cannot_be_served_says_where_and_why(body: str, complaint: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TranslateRequest.model_validate_json(body)
    assert complaint in describe(caught.value)


def test_a_complaint_never_repeats_the_text() -> None:
    with pytest.raises(ValidationError) as caught:
        TranslateRequest.model_validate_json('{"text": {"secret": "the treaty"}, "source": ["the treaty"]}')
    assert "treaty" not in describe(caught.value)


def test_messages_between_versions_ignore_fields_they_do_not_know() -> None:
    wanted = WantedSet.model_validate(
        {"fleet": "f", "revision": 1, "epoch": 7, "adapters": [{**adapter(), "priority": 3}]}
    )
    assert wanted.adapters[0].name == "a"
    assert Inventory.model_validate_json(
        '{"boot_id": "b", "pod": "p", "pod_uid": "u", "fleet": "f", "revision": 0, "later": true,'
        ' "ready": true, "draining": false, "model": {"uri": "x", "loaded": true}}'
    ).ready


@pytest.mark.parametrize(
    ("adapters", "complaint"),
    [
        ([adapter(), adapter()], "names wanted twice: a"),
        ([adapter("a", active=True), adapter("b", active=True)], "more than one adapter is active"),
        ([adapter("../etc")], "name"),
        ([adapter(digest="AB" * 32)], "digest"),
        ([adapter(digest=None, sources=[{"kind": "peer", "addr": "h:1"}])], "only the origin may"),
        ([adapter(sources=[{"kind": "peer"}])], "exactly sources of kind peer have an addr"),
    ],
)
def test_a_wanted_set_that_contradicts_itself_is_refused(
    adapters: list[dict[str, object]], complaint: str
) -> None:
    with pytest.raises(ValidationError, match=complaint):
        WantedSet.model_validate({"fleet": "f", "revision": 1, "adapters": adapters})


def test_what_is_sent_is_what_is_read() -> None:
    wanted = WantedSet(
        fleet="f",
        revision=3,
        adapters=[WantedAdapter.model_validate(adapter(sources=[Source(kind="peer", addr="10.0.0.1:8001")]))],
    )
    assert WantedSet.model_validate_json(wanted.model_dump_json()) == wanted
