"""Typed keys of what the aiohttp applications carry. Knows names only."""

from aiohttp import web

from nllb_server.pod import Pod

POD = web.AppKey("pod", Pod)
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
