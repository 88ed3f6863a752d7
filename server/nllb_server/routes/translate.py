"""POST /v1/translate. Knows the request's way into the translator; must not know tokens or slots."""

from aiohttp import web

from nllb_server.keys import POD
from nllb_server.routes.bodies import json_reply, read_body
from nllb_server.wire import ADAPTER_HEADER, TranslateRequest


async def translate(request: web.Request) -> web.Response:
    """Translate one or many texts; body, header and status are described in wire.py."""
    serving = request.app[POD].serving
    reply = await serving.translator.translate(await read_body(request, TranslateRequest))
    return json_reply(reply, {ADAPTER_HEADER: reply.adapter.header} if reply.adapter else None)
