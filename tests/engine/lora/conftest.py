"""The small checkpoint, its watermarks, and a fresh rig of model, store and source for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from lora_adapters import SMALL
from promotion_rig import LENGTH, PromotionRig
from tiny_configs import reference, save

from nllb_engine.checkpoint import open_checkpoint
from nllb_engine.config import ModelConfig
from nllb_engine.lora.watermark import WatermarkMaker, write_watermarks


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save(reference(SMALL), SMALL, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def marks(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    folder = tmp_path_factory.mktemp("marks")
    config = ModelConfig.from_folder(checkpoint)
    maker = WatermarkMaker(config, open_checkpoint(checkpoint), SMALL.languages, range(3, 80))
    return folder, write_watermarks(maker, folder, 6, LENGTH)


@pytest.fixture
def rig(tmp_path: Path, checkpoint: Path, marks: tuple[Path, list[list[int]]]) -> Iterator[PromotionRig]:
    made = PromotionRig(tmp_path, checkpoint, *marks)
    yield made
    made.model.teardown()
