"""Text to token ids and back, for NLLB's vocabulary layout.

Knows the sentencepiece model and the ids of languages. Holds no state that a call changes, so any thread may
call it. Must not know the model. User text is only ever cut into plain pieces: what looks like a control
token in it (`</s>`, `fra_Latn`) is text.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import sentencepiece

from nllb_engine.config import NllbLang, read_json_object
from nllb_engine.errors import CheckpointError, InvalidRequest, TokenizerError, UnknownLanguage
from nllb_engine.languages import NLLB_200, is_language_code, source_layout

SENTENCEPIECE_FILE = "sentencepiece.bpe.model"
# Ids 0 to 3 are fixed; a piece's id is its sentencepiece id + 1, and sentencepiece's unknown (0) becomes 3.
BOS_ID, PAD_ID, EOS_ID, UNK_ID = 0, 1, 2, 3
_FIRST_PIECE_ID = 4
_OFFSET = 1
_SPACE = "\u2581"


class Tokenizer:
    """Ids equal transformers' NllbTokenizer for text without its special strings and outer spaces."""

    def __init__(
        self,
        processor: sentencepiece.SentencePieceProcessor,
        language_ids: Mapping[str, int],
        legacy_behaviour: bool = False,
    ) -> None:
        """`language_ids` maps codes to ids behind the pieces; TokenizerError when they collide."""
        self._processor = processor
        self._piece_end = processor.get_piece_size() + _OFFSET
        self._language_ids = dict(language_ids)
        self.legacy_behaviour = legacy_behaviour
        ids = set(self._language_ids.values())
        if not ids:
            raise TokenizerError("the tokenizer files name no language; add codes such as eng_Latn")
        if len(ids) < len(self._language_ids) or min(ids) < self._piece_end:
            raise TokenizerError(f"language ids must be distinct and at least {self._piece_end}, "
                                 "behind the sentencepiece pieces")

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read a Hugging Face folder; TokenizerError says which file is missing or damaged."""
        path = folder / SENTENCEPIECE_FILE
        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(path.read_bytes())
        except FileNotFoundError:
            raise TokenizerError(f"{path} is missing; copy it from the base model's folder") from None
        except (OSError, RuntimeError) as error:
            raise TokenizerError(f"{path} is not a readable sentencepiece model: {error}") from error
        settings = _read_optional(folder / "tokenizer_config.json")
        return cls(
            processor,
            _language_ids(folder, settings, processor.get_piece_size() + _OFFSET),
            settings.get("legacy_behaviour") is True,
        )

    @property
    def languages(self) -> list[str]:
        """All language codes, in the order of their ids."""
        return sorted(self._language_ids, key=lambda code: self._language_ids[code])

    def language_id(self, code: str) -> int:
        """The token id of a language code; UnknownLanguage lists the known ones."""
        try:
            return self._language_ids[code]
        except KeyError:
            raise UnknownLanguage(code, sorted(self._language_ids)) from None

    def encode(self, text: str) -> list[int]:
        """Plain piece ids of `text`, without language and end token; empty for blank text."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest("the text holds half of a surrogate pair "
                                 f"at character {error.start}; send valid Unicode") from None
        return [piece + _OFFSET if piece else UNK_ID for piece in self._processor.encode(text)]

    def source_ids(self, text: str, source: str) -> list[int]:
        """The encoder's input: [source] text </s>, or the legacy layout text </s> [source]."""
        return source_layout(self.encode(text), self.language_id(source), EOS_ID, self.legacy_behaviour)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of piece ids; special tokens, languages and ids beyond the pieces are left out."""
        pieces = [
            self._processor.id_to_piece(token - _OFFSET)
            for token in ids
            if _FIRST_PIECE_ID <= token < self._piece_end
        ]
        return "".join(pieces).replace(_SPACE, " ").removeprefix(" ")

    def lang(self, source: str | None = None, target: str | None = None) -> NllbLang:
        """What a model must know of the languages; `source` and `target` are the deployment's defaults."""
        return NllbLang(
            src_lang_id=self.language_id(source) if source else 0,
            tgt_lang_id=self.language_id(target) if target else 0,
            language_ids=frozenset(self._language_ids.values()),
            legacy_behaviour=self.legacy_behaviour,
        )


def _language_ids(folder: Path, settings: Mapping[str, Any], first: int) -> dict[str, int]:
    """Language ids of a folder: as its files record them, else NLLB's list from id `first` on."""
    recorded = settings.get("added_tokens_decoder")
    if isinstance(recorded, dict):
        entries = [(one.get("content"), token) for token, one in recorded.items() if isinstance(one, dict)]
    else:
        added = _read_optional(folder / "tokenizer.json").get("added_tokens", [])
        entries = [(one.get("content"), one.get("id")) for one in added if isinstance(one, dict)]
    try:
        found = {str(code): int(token) for code, token in entries if is_language_code(str(code))}
    except (TypeError, ValueError):
        raise TokenizerError(f"{folder}: a language's id in the tokenizer files is not a number") from None
    return found or {code: first + index for index, code in enumerate(NLLB_200)}


def _read_optional(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return read_json_object(path)
    except CheckpointError as error:
        raise TokenizerError(str(error)) from error
