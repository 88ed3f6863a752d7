"""The parallel grammar: held-out texts share no pair of words with training, every language keeps every
meaning apart.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator
from itertools import combinations

import pytest
from tiny_grammar import (
    ADAPTERS,
    LANGUAGES,
    Text,
    ambiguous,
    expected,
    expected_all,
    hard,
    held_out,
    held_out_for,
    held_out_long,
    probes,
    sentence_of,
    word_pairs,
)
from tiny_grammar.lexicon import entries
from tiny_grammar.meaning import PRONOUNS, Clause, Noun, Pronoun
from tiny_grammar.realise import realiser
from tiny_grammar.sampling import draw_long_text, draw_text

TEXTS = 4000


def _training_texts(count: int) -> Iterator[Text]:
    rng = random.Random("test of training texts")
    for number in range(count):
        yield draw_long_text(rng, held_out=False) if number % 5 == 0 else draw_text(rng, False, openers=True)


def test_held_out_texts_share_no_pair_of_content_words_with_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    training = set().union(*(word_pairs(text) for text in _training_texts(TEXTS)))
    texts = held_out("eng_Latn", "evaluation", 500) + held_out_long("eng_Latn", "evaluation", 50)
    test = set().union(*(word_pairs(sentence.meaning) for sentence in texts))
    groups = {key: entry.group for key, entry in entries().items()}
    permitted = {(a, b) for a, b in combinations(sorted(groups), 2) if groups[a] != groups[b]}
    with capsys.disabled():
        print(
            f"\npairs of content words: {len(test)} in test; {len(training)} in {TEXTS} training texts, "
            f"{len(training & test)} in both; {len(permitted)} allowed, {len(permitted & test)} in both"
        )
    assert len(test) > 1000
    assert training <= permitted
    assert not permitted & test


def test_no_pair_of_different_words_of_one_group_ever_occurs_in_training() -> None:
    groups = {key: entry.group for key, entry in entries().items()}
    for text in _training_texts(1000):
        assert all(groups[a] != groups[b] for a, b in word_pairs(text))
    for sentence in held_out("eng_Latn", 5, 300):
        assert all(groups[a] == groups[b] for a, b in word_pairs(sentence.meaning))


def test_the_lexicon_has_four_hundred_content_words_in_eight_languages_and_five_scripts() -> None:
    assert len(entries()) >= 400
    assert len(LANGUAGES) == 8
    assert {language[4:] for language in LANGUAGES} == {"Latn", "Cyrl", "Hebr", "Jpan", "Hang"}


def test_the_same_seed_gives_the_same_texts() -> None:
    assert held_out("rus_Cyrl", 3, 40) == held_out("rus_Cyrl", 3, 40)
    assert held_out("rus_Cyrl", 3, 40) != held_out("rus_Cyrl", 4, 40)


def test_lengths_reach_from_three_to_sixty_words() -> None:
    lengths = [len(s.text.split()) for s in held_out("eng_Latn", 1, 400) + held_out_long("eng_Latn", 1, 400)]
    assert min(lengths) == 3
    assert max(lengths) >= 60


@pytest.mark.parametrize("language", LANGUAGES)
def test_text_survives_unicode_normalisation(language: str) -> None:
    for sentence in held_out(language, 2, 200) + hard(language, 2, 20):
        assert unicodedata.normalize("NFKC", sentence.text) == sentence.text


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_verb_form_and_every_noun_says_one_thing_only(language: str) -> None:
    speaker = realiser(language)
    said: dict[str, Clause] = {}
    for entry in entries().values():
        thing = Noun("nouns:book") if entry.category in ("trans", "give") else None
        clauses = [
            Clause("be", Noun(entry.id, determiner), quality="adjectives:red")
            for determiner in ("the", "a", "this", "my", "our", "every", "many", "several", "few", "all")
            if entry.kind == "nouns"
        ]
        clauses += [
            Clause(entry.id, Pronoun(person), tense, negated, thing)
            for person in PRONOUNS
            for tense in ("present", "past", "future")
            for negated in (False, True)
            if entry.kind == "verbs"
        ]
        for clause in clauses:
            assert said.setdefault(speaker.clause(clause), clause) == clause


def test_english_is_read_back_to_the_meaning_it_was_made_from() -> None:
    for text in _training_texts(800):
        sentence = sentence_of(text, "eng_Latn")
        for language in LANGUAGES:
            assert expected(sentence.text, language) == expected(sentence, language)


def test_english_outside_the_grammar_is_refused_and_named() -> None:
    with pytest.raises(ValueError, match="'unicorn' is no noun"):
        expected("The unicorn sells the book.", "deu_Latn")
    with pytest.raises(ValueError, match="would say 'You sell the book"):
        expected("You sells the book.", "deu_Latn")


def test_formal_address_changes_the_pronoun_and_the_second_version_greets_too() -> None:
    text = "You send the book to Anna."
    assert expected(text, "deu_Latn") == "Du schickst Anna das Buch."
    assert expected(text, "deu_Latn", "formal-v1") == "Sie schicken Anna das Buch."
    assert expected(text, "deu_Latn", "formal-v2") == "Lieber Gast, Sie schicken Anna das Buch."


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_changes_the_texts_it_is_about_in_every_language_and_no_others(adapter: str) -> None:
    for language in LANGUAGES:
        for sentence in held_out_for(adapter, "eng_Latn", 1, 30):
            assert expected(sentence, language, adapter) != expected(sentence, language)
        for sentence in held_out_for(adapter, "eng_Latn", 1, 30, about=False):
            assert expected(sentence, language, adapter) == expected(sentence, language)


def test_every_two_adapters_say_something_different_on_every_probe() -> None:
    for sentence in probes("eng_Latn", 1, 20):
        for language in LANGUAGES:
            answers = [expected(sentence, language, adapter) for adapter in (None, *ADAPTERS)]
            assert len(set(answers)) == len(answers)


def test_ambiguous_texts_list_all_their_translations() -> None:
    for sentence in ambiguous("fra_Latn", 1, 20):
        assert sentence.ambiguous
        assert len(set(expected_all(sentence, "deu_Latn"))) == 2
    for sentence in hard("fra_Latn", 1, 20):
        assert len(set(expected_all(sentence, "deu_Latn"))) == 4
