"""The real server with a recording proxy around its model: `python recording_server.py [FOLDER]`.

Each process writes the calls of its model to FOLDER/POD.PID.jsonl; FOLDER defaults to $RECORDING_DIR.
nllb_engine.testing.read_recording reads it.
"""

import dataclasses
import os
import sys
from pathlib import Path

from nllb_engine.lora.store import AdapterStore
from nllb_engine.testing import record_model
from nllb_server.__main__ import main
from nllb_server.model_loader import LoadedModel, load_model
from nllb_server.settings import ServerSettings


def load_recorded(settings: ServerSettings, adapter_store: AdapterStore) -> LoadedModel:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["RECORDING_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    loaded = load_model(settings, adapter_store)
    path = folder / f"{settings.pod_name}.{os.getpid()}.jsonl"
    return dataclasses.replace(loaded, model=record_model(loaded.model, path))


if __name__ == "__main__":
    main(load_recorded)
