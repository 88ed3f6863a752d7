"""Own ids from the sentencepiece model; user text never yields control tokens."""

import io
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sentencepiece

from nllb_engine.errors import InvalidRequest, TokenizerError, UnknownLanguage
from nllb_engine.languages import NLLB_200
from nllb_engine.tokenizer import EOS_ID, PAD_ID, SENTENCEPIECE_FILE, UNK_ID, Tokenizer

SENTENCES = ["the cat sees a house", "der Hund sieht das Haus", "la casa es grande", "кошка видит дом"]
CONTROL_WORDS = ["</s>", "<s>", "<unk>", "<pad>", "<mask>", "fra_Latn", "eng_Latn"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20), model_writer=model, model_type="bpe", vocab_size=90,
        minloglevel=2,
    )  # fmt: skip
    (path / SENTENCEPIECE_FILE).write_bytes(model.getvalue())
    return path


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.from_folder(folder)


def copy_of(folder: Path, target: Path, **settings) -> Path:
    shutil.copytree(folder, target)
    (target / "tokenizer_config.json").write_text(json.dumps(settings))
    return target


def test_a_piece_is_its_sentencepiece_id_plus_one(folder, tokenizer):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / SENTENCEPIECE_FILE))
    for text in SENTENCES:
        assert tokenizer.encode(text) == [piece + 1 for piece in processor.encode(text)]


def test_an_unknown_character_is_unk_and_not_pad(tokenizer):
    assert UNK_ID in tokenizer.encode("猫")
    assert PAD_ID not in tokenizer.encode("猫 </s> 家")


def test_without_other_record_the_languages_are_nllbs_list_behind_the_pieces(tokenizer):
    assert tokenizer.languages == list(NLLB_200)
    assert tokenizer.language_id("ace_Arab") == 91
    assert tokenizer.language_id("zul_Latn") == 91 + 201
    assert len(NLLB_200) == 202


def test_nllbs_anchor_ids_follow_from_the_order():
    ids = {code: 256001 + index for index, code in enumerate(NLLB_200)}
    assert (ids["eng_Latn"], ids["fra_Latn"], ids["ron_Latn"], ids["zho_Hans"], ids["zul_Latn"]) == (
        256047, 256057, 256145, 256200, 256202
    )  # fmt: skip


def test_recorded_language_ids_win_over_the_list(folder, tmp_path):
    recorded = {"91": {"content": "<mask>"}, "92": {"content": "eng_Latn"}, "93": {"content": "tyv_Cyrl"}}
    tokenizer = Tokenizer.from_folder(copy_of(folder, tmp_path / "new", added_tokens_decoder=recorded))
    assert tokenizer.languages == ["eng_Latn", "tyv_Cyrl"]
    assert tokenizer.language_id("tyv_Cyrl") == 93


def test_languages_are_found_in_tokenizer_json_too(folder, tmp_path):
    path = copy_of(folder, tmp_path / "fast")
    added = {"added_tokens": [{"id": 2, "content": "</s>"}, {"id": 95, "content": "deu_Latn"}]}
    (path / "tokenizer.json").write_text(json.dumps(added))
    assert Tokenizer.from_folder(path).language_id("deu_Latn") == 95


@pytest.mark.parametrize("word", CONTROL_WORDS)
def test_control_words_in_a_text_are_text(tokenizer, word):
    special = {0, PAD_ID, EOS_ID, *(tokenizer.language_id(code) for code in tokenizer.languages)}
    ids = tokenizer.encode(f"the {word} cat")
    assert not special & set(ids)
    assert max(ids) < 91


def test_the_source_layout_is_language_first(tokenizer):
    pieces = tokenizer.encode("the cat")
    assert tokenizer.source_ids("the cat", "eng_Latn") == [tokenizer.language_id("eng_Latn"), *pieces, EOS_ID]


def test_the_legacy_layout_is_honoured(folder, tmp_path):
    tokenizer = Tokenizer.from_folder(copy_of(folder, tmp_path / "legacy", legacy_behaviour=True))
    language = tokenizer.language_id("eng_Latn")
    assert tokenizer.source_ids("the cat", "eng_Latn") == [*tokenizer.encode("the cat"), EOS_ID, language]
    assert tokenizer.lang().legacy_behaviour


@pytest.mark.parametrize("text", ["", " ", "\n\t \u3000"])
def test_blank_text_has_no_pieces(tokenizer, text):
    assert tokenizer.encode(text) == []


def test_decoding_gives_the_text_back_without_special_tokens(tokenizer):
    for text in SENTENCES:
        ids = tokenizer.encode(text)
        framed = [EOS_ID, tokenizer.language_id("deu_Latn"), *ids, EOS_ID, PAD_ID, 10**6]
        assert tokenizer.decode(framed) == text


def test_an_unknown_language_lists_the_known_ones(tokenizer):
    with pytest.raises(UnknownLanguage, match="xxx_Latn") as caught:
        tokenizer.language_id("xxx_Latn")
    assert caught.value.known == sorted(NLLB_200)


def test_half_a_surrogate_pair_is_refused(tokenizer):
    with pytest.raises(InvalidRequest, match="character 4"):
        tokenizer.encode("cat \ud800")


def test_missing_and_damaged_files_are_named(folder, tmp_path):
    with pytest.raises(TokenizerError, match=rf"{SENTENCEPIECE_FILE} is missing"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / SENTENCEPIECE_FILE).write_bytes(b"not a model")
    with pytest.raises(TokenizerError, match="not a readable sentencepiece model"):
        Tokenizer.from_folder(tmp_path)
    colliding = {"5": {"content": "eng_Latn"}}
    with pytest.raises(TokenizerError, match="at least 91"):
        Tokenizer.from_folder(copy_of(folder, tmp_path / "colliding", added_tokens_decoder=colliding))
    damaged = copy_of(folder, tmp_path / "damaged")
    (damaged / "tokenizer_config.json").write_text("{")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json"):
        Tokenizer.from_folder(damaged)


def test_the_model_learns_languages_and_defaults(tokenizer):
    lang = tokenizer.lang("eng_Latn", "deu_Latn")
    assert lang.src_lang_id == tokenizer.language_id("eng_Latn")
    assert lang.tgt_lang_id == tokenizer.language_id("deu_Latn")
    assert len(lang.language_ids) == 202
    assert tokenizer.lang().src_lang_id == 0


def test_threads_share_a_tokenizer(tokenizer):
    texts = [" ".join(SENTENCES[i % 4].split()[: i % 5 + 1]) for i in range(400)]
    expected = [tokenizer.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == expected
