"""`nllb-operator`: reads the settings and runs kopf until it is told to stop.

Knows the environment and the exit code: 1 if the operator ended by a failure, so that it is started anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

import kopf

from nllb_operator import handlers
from nllb_operator.settings import OperatorSettings, SettingsError


def main() -> None:
    """Run the operator."""
    try:
        settings = OperatorSettings.from_env(os.environ)
    except SettingsError as error:
        sys.exit(f"nllb-operator: {error}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    sys.exit(asyncio.run(_run(settings)))


async def _run(settings: OperatorSettings) -> int:
    operator = handlers.Operator(settings, asyncio.Event())
    await kopf.operator(
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        memo=operator,
        stop_flag=operator.stop,
    )
    return int(operator.failed)


if __name__ == "__main__":
    main()
