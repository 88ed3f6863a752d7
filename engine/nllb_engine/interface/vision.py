"""Images in prompts. A text model keeps the defaults."""

from collections.abc import Sequence

from nllb_engine.interface.values import VisionItem


class ModelVision:
    """Vision-encoder input for prompts that hold image pad tokens."""

    def prepare_vision_embed(self, images: Sequence[VisionItem]) -> None:
        """Encode `images` and keep the rows for the next prefill. Seed's default: nothing."""
        return None

    def ep_sync_vision_embeds(self, tokens: Sequence[int]) -> None:
        """Give every rank the same vision rows for this prompt. Seed's default: nothing."""
        return None

    def prepare_vision_embed_batched(
        self, per_request: Sequence[Sequence[VisionItem]]
    ) -> list[tuple[int, int, int, int]]:
        """Encode the images of several requests in one pass.

        Returns per request (patch row offset, grid index offset, images, patch rows) in the shared output.
        Seed's default: an empty list.
        """
        return []

    def set_vision_slice_base(self, row_base: int, grid_base: int, owned_images: int) -> None:
        """Where the next prefill chunk reads its vision rows; (0, 0, 0) resets. Seed's default: nothing."""
        return None

    def tokens_contain_vision_pad(self, tokens: Sequence[int]) -> bool:
        """Whether `tokens` holds an image pad, whose rows a second prefill could not reproduce.

        Seed's default: False.
        """
        return False
