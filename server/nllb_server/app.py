"""The two applications: every route of the server on one screen.

Knows routes, middlewares and limits. The public port has no control routes, and the control port does not
translate; health is on both.
"""

from aiohttp import web

from nllb_engine.lora.store import AdapterStore
from nllb_server.keys import POD
from nllb_server.middlewares import observe, problems
from nllb_server.pod import Pod
from nllb_server.routes.control import PeerContent, inventory, put_wanted
from nllb_server.routes.health import livez, metrics, readyz
from nllb_server.routes.models import languages, models
from nllb_server.routes.translate import translate
from nllb_server.wire import (
    INVENTORY_PATH,
    LANGUAGES_PATH,
    LIVEZ_PATH,
    METRICS_PATH,
    MODELS_PATH,
    PEER_PATH,
    READYZ_PATH,
    TRANSLATE_PATH,
    WANTED_PATH,
)

_MAX_WANTED_BYTES = 8 << 20


def make_public_app(pod: Pod) -> web.Application:
    """What users reach."""
    app = _make_app(pod, max_body_bytes=pod.settings.max_body_bytes)
    app.add_routes(
        [
            web.post(TRANSLATE_PATH, translate),
            web.get(MODELS_PATH, models),
            web.get(LANGUAGES_PATH, languages),
        ]
    )
    return app


def make_control_app(pod: Pod, store: AdapterStore) -> web.Application:
    """What the operator and peers reach."""
    content = PeerContent(store)
    app = _make_app(pod, max_body_bytes=_MAX_WANTED_BYTES)
    app.add_routes(
        [
            web.get(INVENTORY_PATH, inventory),
            web.put(WANTED_PATH, put_wanted),
            web.get(PEER_PATH + "/{digest}", content.manifest),
            web.get(PEER_PATH + "/{digest}/{file}", content.file),
        ]
    )
    return app


def _make_app(pod: Pod, max_body_bytes: int) -> web.Application:
    app = web.Application(middlewares=[observe, problems], client_max_size=max_body_bytes)
    app[POD] = pod
    app.add_routes([web.get(LIVEZ_PATH, livez), web.get(READYZ_PATH, readyz), web.get(METRICS_PATH, metrics)])
    return app
