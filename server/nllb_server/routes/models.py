"""GET /v1/models and /v1/languages: what can be named in a request."""

from aiohttp import web

from nllb_server.keys import POD
from nllb_server.routes.bodies import json_reply
from nllb_server.wire import LanguageList, ModelCard, ModelList


async def models(request: web.Request) -> web.Response:
    """The base model, then each adapter whose files are on this pod, in OpenAI's shape."""
    pod = request.app[POD]
    base = pod.serving.model_name
    cards = [ModelCard(id=base, created=pod.started, root=pod.settings.model_uri)]
    for name in pod.manager.names:
        version = pod.manager.version_on_disk(name)
        adapter = pod.manager.wanted(name)
        if version and adapter:
            cards.append(
                ModelCard(id=name, created=pod.started, root=adapter.uri, parent=base, digest=version.digest)
            )
    return json_reply(ModelList(data=cards))


async def languages(request: web.Request) -> web.Response:
    """The model's language codes, in the order of their ids, and this fleet's defaults."""
    pod = request.app[POD]
    return json_reply(
        LanguageList(
            languages=pod.serving.languages,
            default_source=pod.settings.default_source,
            default_target=pod.settings.default_target,
        )
    )
