"""Trains the sentencepiece vocabulary and writes the tokenizer files of an NLLB folder.

Knows NLLB's layout of ids: <s> 0, <pad> 1, </s> 2, <unk> 3, every other piece at its sentencepiece id +
1, then the
202 languages in their order, then <mask>. Must not know the model.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tiny_grammar import LANGUAGES
from tiny_grammar.realise import REALISERS
from tiny_grammar.sampling import draw_text
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES, NllbTokenizer

PIECES = 4400
GLUE = "\u2063"
"""Invisible separator: marks word boundaries that Hebrew, Japanese and Korean do not write, in training
only.
"""


def _corpus(texts: int, seed: int) -> Iterator[str]:
    rng = random.Random(f"vocabulary {seed}")
    speakers = [REALISERS[language](language) for language in LANGUAGES]
    for speaker in speakers:
        speaker.glue = GLUE
        speaker.space = speaker.space or GLUE
    for _ in range(texts):
        meaning = draw_text(rng, held_out=False, openers=True)
        for speaker in speakers:
            yield speaker.text(meaning, rng.randrange(4) % speaker.openings(meaning))


def train_pieces(path: Path, texts: int = 60_000, seed: int = 1) -> None:
    """Write `sentencepiece.bpe.model` with `PIECES` pieces, learnt from generated texts."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_corpus(texts, seed),
        model_writer=model,
        model_type="bpe",
        vocab_size=PIECES,
        character_coverage=1.0,
        split_digits=True,
        pretokenization_delimiter=GLUE,
        shuffle_input_sentence=False,
        num_threads=2,
        minloglevel=1,
    )
    path.write_bytes(model.getvalue())


def _merges(scores: dict[str, float], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to join two pieces into a third, in the order in which sentencepiece joins them."""
    merges = []
    for piece, score in scores.items():
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        known = [pair for pair in splits if pair[0] in scores and pair[1] in scores]
        merges += [(-score, ids[left], ids[right], left, right) for left, right in known]
    return [(left, right) for _, _, _, left, right in sorted(merges)]


def write_tokenizer(folder: Path) -> int:
    """Write tokenizer.json, tokenizer_config.json, special_tokens_map.json beside the pieces; returns the
    ids' number.
    """
    formats: Any = sentencepiece_model_pb2
    proto = formats.ModelProto()
    proto.ParseFromString((folder / "sentencepiece.bpe.model").read_bytes())
    ids = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    scores = {piece.piece: piece.score for piece in proto.pieces[3:]}
    ids |= {piece: 4 + place for place, piece in enumerate(scores)}
    ids |= {code: len(proto.pieces) + 1 + place for place, code in enumerate(FAIRSEQ_LANGUAGE_CODES)}
    ids["<mask>"] = len(ids)
    make: Any = NllbTokenizer
    tokenizer = make(
        vocab=ids,
        merges=_merges(scores, ids),
        _spm_precompiled_charsmap=proto.normalizer_spec.precompiled_charsmap,
        model_max_length=1024,
    )
    tokenizer.save_pretrained(folder)
    wrong = [token for token, expected in ids.items() if tokenizer.convert_tokens_to_ids(token) != expected]
    if wrong or len(tokenizer) != len(ids):
        raise RuntimeError(
            f"the tokenizer moved {len(wrong)} ids, {wrong[:3]}: check the order of the vocabulary"
        )
    special = {name: tokenizer.special_tokens_map[name] for name in tokenizer.special_tokens_map}
    special["additional_special_tokens"] = list(FAIRSEQ_LANGUAGE_CODES)
    text = json.dumps(special, indent=2, ensure_ascii=False)
    (folder / "special_tokens_map.json").write_text(text + "\n", encoding="utf-8")
    return len(ids)
