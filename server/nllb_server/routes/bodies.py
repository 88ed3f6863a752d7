"""Reads and writes JSON bodies. Knows limits and the wire's models; must not know what they mean."""

import asyncio
from typing import TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from nllb_server.problems import ApiError

BODY_SECONDS = 10.0
"""A client that takes longer to send its body is sent away: aiohttp itself would wait for ever."""

M = TypeVar("M", bound=BaseModel)


async def read_body(request: web.Request, model: type[M]) -> M:
    """The body as `model`; ApiError 400, 408 or 415, and aiohttp's own 413."""
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise ApiError(415, "encoding_not_supported", "send the body uncompressed")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.read()
    except TimeoutError:
        raise ApiError(408, "body_timeout", f"the body did not arrive within {BODY_SECONDS:g} s") from None
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise ApiError(400, "invalid_request", describe(error)) from None


def describe(error: ValidationError) -> str:
    """Where the body is wrong and what fits there, without repeating any of it."""
    parts = []
    for item in error.errors(include_url=False, include_context=False, include_input=False)[:5]:
        place = ".".join(str(step) for step in item["loc"])[:100]
        parts.append(f"{place}: {item['msg']}" if place else item["msg"])
    return "; ".join(parts)


def json_reply(model: BaseModel, headers: dict[str, str] | None = None) -> web.Response:
    """200 with `model` as JSON."""
    return web.json_response(text=model.model_dump_json(), headers=headers)
