"""Around every handler: request id, timing, drain, and errors as problem JSON.

Knows aiohttp and the error type. Must not know routes' meaning. Logs hold ids, routes, codes and times; never
a body.
"""

import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web

from nllb_server.keys import POD, REQUEST_ID
from nllb_server.problems import ApiError
from nllb_server.wire import (
    READYZ_PATH,
    REQUEST_ID_HEADER,
    TRANSLATE_PATH,
    WANTED_PATH,
    Problem,
    ProblemDetail,
)

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_USABLE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}


@web.middleware
async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request an id, count and time it; while draining, let its connection end with the reply."""
    pod, began = request.app[POD], time.monotonic()
    given = request.headers.get(REQUEST_ID_HEADER, "")
    request_id = request[REQUEST_ID] = given if _USABLE_ID.fullmatch(given) else uuid.uuid4().hex
    resource = request.match_info.route.resource
    route = resource.canonical if resource else "unknown"
    code = 499  # the client left before the reply
    pod.in_flight += 1
    try:
        reply = await handler(request)
        code = reply.status
        if not reply.prepared:
            reply.headers[REQUEST_ID_HEADER] = request_id
            if pod.draining:
                reply.force_close()
        return reply
    finally:
        pod.in_flight -= 1
        seconds = time.monotonic() - began
        pod.metrics.requests.labels(route, str(code)).inc()
        pod.metrics.seconds.labels(route).observe(seconds)
        if (code >= 500 and route != READYZ_PATH) or route in (TRANSLATE_PATH, WANTED_PATH):
            log.info("%s %s %s %d in %.4f s", request_id, request.method, route, code, seconds)


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error into a Problem; one that nobody expected is logged and becomes a plain 500."""
    try:
        return await handler(request)
    except ApiError as error:
        return _reply(request, error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        code = _HTTP_CODES.get(error.status, "bad_request" if error.status < 500 else "internal")
        reply = _reply(request, ApiError(error.status, code, _advice(request, error)))
        if "Allow" in error.headers:
            reply.headers["Allow"] = error.headers["Allow"]
        return reply
    except Exception:
        log.exception("%s failed", request[REQUEST_ID])
        return _reply(request, ApiError(500, "internal", "the server failed; its log has this request's id"))


def _advice(request: web.Request, error: web.HTTPException) -> str:
    match error.status:
        case 404:
            return "there is nothing at this path"
        case 405:
            return f"{request.method} is not possible here; the header Allow says what is"
        case 413:
            return f"the body is too large; send at most {request.client_max_size} bytes"
        case _:
            return error.reason


def _reply(request: web.Request, error: ApiError) -> web.Response:
    detail = ProblemDetail(
        code=error.code,
        message=error.message,
        known=error.known,
        near=error.near,
        request_id=request.get(REQUEST_ID),
    )
    reply = web.json_response(
        text=Problem(error=detail).model_dump_json(exclude_none=True),
        status=error.status,
    )
    if error.retry_after is not None:
        reply.headers["Retry-After"] = str(error.retry_after)
    return reply
