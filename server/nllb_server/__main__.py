"""`python -m nllb_server`: settings from the environment, then the server's life."""

import asyncio
import logging
import os
import sys

from nllb_server.model_loader import load_model
from nllb_server.process import Load, run_server
from nllb_server.settings import ServerSettings, SettingsError


def main(load: Load = load_model) -> None:
    """Run one server; exit status 2 for settings that cannot be used, 1 for a model that cannot be loaded."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        status = asyncio.run(run_server(ServerSettings.from_env(os.environ), load))
    except SettingsError as error:
        logging.getLogger("nllb_server").error("%s", error)
        status = 2
    sys.exit(status)


if __name__ == "__main__":
    main()
