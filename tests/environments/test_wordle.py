"""wordle: marks, what counts as a guess, and what a game is worth."""

import itertools

import pytest

from environments.base import Sample
from environments.checks import BadEnvironment
from environments.loader import load
from environments.multi_turn import State
from environments.support.words import FIVE_LETTERS
from environments.turn import at_once, replayed
from environments.wordle import guess_of, marked


@pytest.mark.parametrize(
    ("guess", "word", "marks"),
    [
        ("crane", "crane", "GGGGG"),
        ("slate", "crane", "XXGXG"),
        ("enter", "crane", "YYXXY"),
        ("eerie", "there", "YXYXG"),  # two letters e in the word: one in place, one elsewhere
        ("allay", "label", "YYYXX"),
        ("geese", "elbow", "XYXXX"),  # one e only
        ("abcde", "fghij", "XXXXX"),
    ],
)
def test_each_letter_is_marked_as_often_as_the_word_has_it(guess, word, marks):
    assert marked(guess, word) == marks


@pytest.mark.parametrize(
    ("turn", "guess"),
    [
        ("crane", "crane"),
        (" CRANE\n", "crane"),
        ("I think <guess>slate</guess>", "slate"),
        ("<guess>slate</guess> or <guess> Crane </guess>", "crane"),
        ("cranes", None),
        ("cran", None),
        ("cr ne", None),
        ("crané", None),
        ("12345", None),
        ("<guess></guess>", None),
        ("", None),
    ],
)
def test_a_guess_is_a_word_of_five_letters(turn, guess):
    assert guess_of(turn) == guess


def game(*said, word="crane", **kwargs):
    environment = load("wordle", kwargs)
    state = at_once(replayed(environment, Sample("p", word), said))
    return state, environment.compute_reward(state)


@pytest.mark.parametrize(
    ("said", "reward", "metrics"),
    [
        (["crane"], 1.0, {"solved": 1, "valid": 1, "best_green": 5}),
        (["slate", "crane"], 0.9, {"solved": 1, "valid": 1, "best_green": 5}),
        (["what", "slate", "crane"], 0.8, {"solved": 1, "valid": pytest.approx(2 / 3), "best_green": 5}),
        (["slate"] * 6, 0.08, {"solved": 0, "valid": 1, "best_green": 2}),
        (["?"] * 6, 0.0, {"solved": 0, "valid": 0, "best_green": 0}),
    ],
)
def test_a_game_is_worth_more_the_sooner_it_is_won(said, reward, metrics):
    _, result = game(*said)
    assert result.total_reward == pytest.approx(reward)
    assert result.sample_metrics == metrics
    assert result.golden_answers == {"word": "crane"}


def test_the_game_ends_with_the_word_and_tells_the_marks_until_then():
    state, _ = game("slate", "?", "crane", "ready")
    replies = [turn["content"] for turn in state.turns if turn["role"] == "user"]
    assert replies == ["\nslate XXGXG. Your guess: ", "\nNot a word of 5 letters. Your guess: "]
    assert state.completions == ["slate", "?", "crane"]


def test_a_game_without_a_turn_is_worth_nothing():
    assert load("wordle", {}).compute_reward(State(Sample("p", "crane"))).total_reward == 0.0


def test_words_are_different_and_have_five_letters():
    assert len(set(FIVE_LETTERS)) == len(FIVE_LETTERS) == 450
    assert all(len(word) == 5 and word.isascii() and word.islower() for word in FIVE_LETTERS)


def test_worked_examples_are_games_of_training_words():
    environment = load("wordle", {})
    words = {sample.prompt: sample.answer for sample in environment.samples("train")}
    for prompt, (wrong, reply, right) in itertools.islice(environment.worked_examples(0), 50):
        assert words[prompt] == right
        assert reply == f"\n{wrong} {marked(wrong, right)}. Your guess: "


def test_sizes_that_make_no_sense_are_refused():
    with pytest.raises(BadEnvironment, match="num_eval must be 1 to 449 words, got 450"):
        load("wordle", {"num_eval": 450})
