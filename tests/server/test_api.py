"""The public API of a real server process with the tiny model."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from server_pods import ServerPod, server_pod
from tiny_grammar import expected, held_out

pytestmark = pytest.mark.asyncio(loop_scope="module")

SENTENCES = held_out("eng_Latn", seed="api", count=60)
TEXTS = [sentence.text for sentence in SENTENCES]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pod(tiny_nllb: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerPod]:
    limits = {"max_body_bytes": 20_000, "max_texts": 80, "max_beams": 4, "max_queue_tokens": 4000}
    async with server_pod(tiny_nllb, tmp_path_factory.mktemp("pod"), **limits) as pod:
        yield pod
    assert pod.exit_code == 0


async def test_many_texts_are_translated_in_their_order(pod: ServerPod) -> None:
    for target in ("deu_Latn", "heb_Hebr", "jpn_Jpan"):
        answers = await pod.texts(TEXTS, target=target)
        right = sum(a == expected(s, target) for a, s in zip(answers, SENTENCES, strict=True))
        assert right >= 0.95 * len(TEXTS), f"{right} of {len(TEXTS)} are right for {target}"


async def test_one_text_alone_gets_what_it_gets_among_many(pod: ServerPod) -> None:
    for beams in (1, 4):
        together = await pod.texts(TEXTS[:12], num_beams=beams)
        alone = await asyncio.gather(*(pod.texts(text, num_beams=beams) for text in TEXTS[:12]))
        assert together == [answer for [answer] in alone]


async def test_a_reply_says_what_answered_and_how(pod: ServerPod) -> None:
    status, body = await pod.translate(TEXTS[0], num_beams=3, num_return_sequences=2, return_tokens=True)
    assert status == 200
    assert (body["model"], body["adapter"], body["pod"]) == ("tiny-nllb", None, "pod-0")
    [translation] = body["translations"]
    assert translation["finish_reason"] == "stop"
    [alternative] = translation["alternatives"]
    assert translation["score"] > alternative["score"]
    assert translation["token_ids"] != alternative["token_ids"]


async def test_a_limit_on_the_output_cuts_and_says_so(pod: ServerPod) -> None:
    whole = (await pod.translate(TEXTS[0], return_tokens=True))[1]["translations"][0]["token_ids"]
    for beams in (1, 2):
        [cut] = (await pod.translate(TEXTS[0], max_new_tokens=3, num_beams=beams))[1]["translations"]
        assert cut["finish_reason"] == "length"
    [cut] = (await pod.translate(TEXTS[0], max_new_tokens=3, return_tokens=True))[1]["translations"]
    assert cut["token_ids"] == whole[:3]


async def test_blank_texts_translate_to_nothing_without_the_model(pod: ServerPod) -> None:
    [blank, empty, _] = (await pod.translate(["  \n ", "", TEXTS[0]]))[1]["translations"]
    assert (blank["text"], blank["finish_reason"], empty["text"]) == ("", "stop", "")


async def test_long_input_does_not_hold_up_health(pod: ServerPod) -> None:
    long = [" ".join(TEXTS[:6])] * 40
    answer = asyncio.create_task(pod.translate(long, max_new_tokens=2))
    while not answer.done():
        async with asyncio.timeout(0.5):
            assert (await pod.get("/readyz"))[0] == 200
        await asyncio.sleep(0.01)
    assert (await answer)[0] == 200


@pytest.mark.parametrize(
    ("options", "status", "code", "says"),
    [
        ({"target": "fr"}, 404, "unknown_language", "did you mean fra_Latn?"),
        ({"source": "eng_latn"}, 404, "unknown_language", "did you mean eng_Latn?"),
        ({"source": "<mask>"}, 404, "unknown_language", "unknown language"),
        ({"source": ""}, 404, "unknown_language", "unknown language ''"),
        ({"target": "</s>"}, 404, "unknown_language", "unknown language"),
        ({"target": None}, 400, "invalid_request", "names no target language"),
        ({"adapter": "formal"}, 404, "unknown_adapter", "unknown adapter 'formal'"),
        ({"adapter": ""}, 404, "unknown_adapter", "unknown adapter ''"),
        ({"num_beams": 5}, 400, "invalid_request", "num_beams is 5; this fleet allows 4"),
        ({"num_beams": 0}, 400, "invalid_request", "num_beams: Input should be greater"),
        ({"num_beams": True}, 400, "invalid_request", "num_beams: Input should be a valid integer"),
        ({"max_new_tokens": 10**9}, 400, "invalid_request", "max_new_tokens is 1000000000"),
        ({"length_penalty": 1e6, "num_beams": 2}, 400, "invalid_request", "length_penalty"),
        ({"early_stopping": "sometimes"}, 400, "invalid_request", "early_stopping"),
        ({"text": ["a"] * 81}, 400, "invalid_request", "send at most 80"),
        ({"text": "cat " * 2000}, 400, "text_too_long", "text 0 has"),
        ({"text": []}, 400, "invalid_request", "at least 1 item"),
        ({"colour": "blue"}, 400, "invalid_request", "colour: Extra inputs are not permitted"),
        ({"text": "x" * 30_000}, 413, "body_too_large", "send at most 20000 bytes"),
    ],
)
async def test_bad_input_is_answered_with_what_to_do(
    pod: ServerPod, options: dict[str, Any], status: int, code: str, says: str
) -> None:
    given = {"text": "the cat", **options}
    got, body = await pod.translate(given.pop("text"), **given)
    assert (got, body["error"]["code"]) == (status, code)
    assert says in body["error"]["message"]
    assert body["error"]["request_id"]


async def test_an_unknown_language_is_answered_with_those_that_are_known(pod: ServerPod) -> None:
    _, body = await pod.translate("x", target="klingon")
    known = (await pod.get("/v1/languages"))[1]["languages"]
    assert body["error"]["known"] == sorted(known)
    assert {"eng_Latn", "deu_Latn", "heb_Hebr"} <= set(known)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 9000, b'{"text":"\\ud800"}']
)
async def test_a_body_that_is_no_request_is_a_400(pod: ServerPod, data: bytes) -> None:
    async with pod.session.post(pod.url + "/v1/translate", data=data) as reply:
        assert reply.status == 400
        assert (await reply.json())["error"]["code"] == "invalid_request"


async def test_a_compressed_body_is_refused(pod: ServerPod) -> None:
    headers = {"Content-Encoding": "gzip"}
    async with pod.session.post(pod.url + "/v1/translate", data=b"\x1f\x8b", headers=headers) as reply:
        assert reply.status == 415


async def test_other_paths_and_methods_are_told_apart(pod: ServerPod) -> None:
    assert (await pod.get("/v1/translation"))[0] == 404
    status, body = await pod.get("/v1/translate")
    assert (status, body["error"]["code"]) == (405, "method_not_allowed")


async def test_the_public_port_has_no_control_routes_and_the_control_port_does_not_translate(
    pod: ServerPod,
) -> None:
    assert (await pod.get("/control/v1/inventory"))[0] == 404
    assert (await pod.get("/peer/v1/adapters/" + "0" * 64))[0] == 404
    async with pod.session.post(pod.control_url + "/v1/translate", json={"text": "x"}) as reply:
        assert reply.status == 404


async def test_the_request_id_comes_back_when_it_is_usable(pod: ServerPod) -> None:
    for given, kept in (("abc-1", True), ("x" * 65, False), ("a b", False)):
        async with pod.session.get(pod.url + "/livez", headers={"X-Request-Id": given}) as reply:
            assert (reply.headers["X-Request-Id"] == given) is kept


async def test_more_work_than_the_queue_holds_is_sent_away_at_once_and_the_rest_is_served(
    pod: ServerPod,
) -> None:
    long = [" ".join(TEXTS[:6])] * 40
    requests = (pod.translate(long, max_new_tokens=2) for _ in range(20))
    statuses = [status for status, _ in await asyncio.gather(*requests)]
    assert set(statuses) == {200, 429}
    async with pod.session.get(pod.url + "/readyz") as reply:
        assert reply.status == 200


@pytest.mark.slow
async def test_a_body_that_never_comes_is_given_up(pod: ServerPod) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(pod.url.rpartition(":")[2]))
    writer.write(b"POST /v1/translate HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    async with asyncio.timeout(20):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_leaves_frees_its_rows(pod: ServerPod) -> None:
    async def leave() -> None:
        timeout = aiohttp.ClientTimeout(total=0.05)
        body = {"text": TEXTS[:30], "source": "eng_Latn", "target": "deu_Latn", "num_beams": 4}
        async with pod.session.post(pod.url + "/v1/translate", json=body, timeout=timeout) as reply:
            await reply.read()

    left = await asyncio.gather(*(leave() for _ in range(6)), return_exceptions=True)
    assert any(isinstance(one, TimeoutError) for one in left)
    assert await pod.texts(TEXTS[0]) == [expected(SENTENCES[0], "deu_Latn")]
    assert (await metric(pod, "nllb_batch_rows"), await metric(pod, "nllb_queue_requests")) == (0, 0)


async def metric(pod: ServerPod, name: str) -> float:
    async with pod.session.get(pod.url + "/metrics") as reply:
        lines = (await reply.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


async def test_metrics_count_requests_texts_and_tokens(pod: ServerPod) -> None:
    names = [f"nllb_{name}" for name in ("texts_total", "source_tokens_total", "output_tokens_total")]
    names.append("nllb_request_seconds_count")
    before = [await metric(pod, name) for name in names]
    status, body = await pod.translate(TEXTS[:5], return_tokens=True)
    assert status == 200
    after = [await metric(pod, name) for name in names]
    texts, source, output, requests = (b - a for a, b in zip(before, after, strict=True))
    assert texts == 5
    assert source > 5
    assert output == sum(len(one["token_ids"]) for one in body["translations"])
    assert requests >= 1
    fill = await metric(pod, "nllb_engine_rows_total") / await metric(pod, "nllb_engine_steps_total")
    assert 1 <= fill <= await metric(pod, "nllb_batch_rows_limit")


async def test_every_served_token_came_from_the_model_interface(pod: ServerPod) -> None:
    served = []
    for beams in (1, 3):
        _, body = await pod.translate(TEXTS[:20], num_beams=beams, return_tokens=True)
        served += [(beams, one) for one in body["translations"]]
    outputs = pod.recording.outputs
    for beams, one in served:
        ids = tuple(one["token_ids"])
        assert (ids if beams > 1 else (*ids, 2)) in outputs


async def test_no_text_of_a_user_is_logged(pod: ServerPod) -> None:
    secret = "Xylophonquartett"
    await pod.translate(secret)
    await pod.translate(secret, colour=secret)
    await pod.translate("x", target=secret, adapter=secret)
    async with pod.session.post(pod.url + "/v1/translate", data=json.dumps({"text": {secret: 1}})) as reply:
        assert secret not in await reply.text()
    assert secret not in pod.log


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET /secret-text\x01 HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nA: secret-text\x01\r\n\r\n",
     b"POST / HTTP/1.1\r\nContent-Length: -3\r\nA: secret-text\r\n\r\n"],
)  # fmt: skip
async def test_what_is_no_http_is_one_line_in_the_log_and_quotes_nothing(
    pod: ServerPod, request_bytes: bytes
) -> None:
    host, port = pod.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request_bytes)
    assert b" 400 " in await reader.readline()
    writer.close()
    await asyncio.sleep(0.1)
    assert "no valid HTTP" in pod.log
    assert "secret-text" not in pod.log and "Traceback" not in pod.log
