"""`python -m nllb_server`: settings from the environment, then the server's life."""

import asyncio
import logging
import os
import sys
import threading

from nllb_server.model_loader import load_model
from nllb_server.process import LOADER_THREAD, Load, run_server
from nllb_server.settings import ServerSettings, SettingsError


def main(load: Load = load_model) -> None:
    """Run one server; exit status 2 for settings that cannot be used, 1 for a model that cannot be loaded."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        status = asyncio.run(run_server(ServerSettings.from_env(os.environ), load))
    except SettingsError as error:
        logging.getLogger("nllb_server").error("%s", error)
        status = 2
    logging.shutdown()
    if any(thread.name == LOADER_THREAD for thread in threading.enumerate()):
        # Stopped while loading: torch, still at work in that thread, would abort when the interpreter ends.
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    main()
