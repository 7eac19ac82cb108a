"""wordle: guess a word of five letters in six turns; each guess is answered letter by letter.

G: the letter stands there. Y: it stands elsewhere in the word. X: it does not (or not so often). The total reward is 1
for the word in the first turn and 0.1 less for each turn more; without it, up to 0.2 for the most letters that stood in
the right place in one guess. A guess is the last word in <guess> tags, or the whole turn without them.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from environments.base import Message, RewardResult, Sample, Split, WorkedExample
from environments.multi_turn import MultiTurnEnvironment, State
from environments.support.words import FIVE_LETTERS

GUESS = re.compile(r"<guess>\s*([A-Za-z]*)\s*</guess>")
LETTERS = 5
PER_TURN = 0.1
FOR_LETTERS = 0.2


class Wordle(MultiTurnEnvironment):
    """`solved`: the word was found. `valid`: share of turns with a guess. `best_green`: most letters in place."""

    max_turns = 6
    metrics_ranges: ClassVar = {
        "solved": {"min": 0, "max": 1},
        "valid": {"min": 0, "max": 1},
        "best_green": {"min": 0, "max": LETTERS},
    }

    def __init__(self, num_eval: int = 60, seed: int = 0, max_turns: int | None = None) -> None:
        super().__init__(max_turns=max_turns)
        if not 1 <= num_eval < len(FIVE_LETTERS):
            raise ValueError(f"num_eval must be 1 to {len(FIVE_LETTERS) - 1} words, got {num_eval}")
        words = list(FIVE_LETTERS)
        random.Random(f"wordle {seed}").shuffle(words)
        self._held_out, self._train = words[:num_eval], words[num_eval:]

    def samples(self, split: Split) -> Sequence[Sample]:
        """One sample a word. The prompt names a number, so that each word is a problem of its own."""
        words = self._held_out if split == "eval" else self._train
        return [Sample(f"{self._rules()} Puzzle {FIVE_LETTERS.index(word) + 1}. Your guess: ", word) for word in words]

    def env_response(self, messages: list[Message], state: State) -> str | None:
        guess = guess_of(messages[-1]["content"])
        if guess is None:
            return f"\nNot a word of {LETTERS} letters. Your guess: "
        marks = marked(guess, state.sample.answer)
        return None if guess == state.sample.answer else f"\n{guess} {marks}. Your guess: "

    def compute_reward(self, state: State) -> RewardResult:
        word = state.sample.answer
        guesses = [guess_of(turn) for turn in state.completions]
        best = max((marked(guess, word).count("G") for guess in guesses if guess), default=0)
        solved = word in guesses
        total = 1 - PER_TURN * guesses.index(word) if solved else FOR_LETTERS * best / LETTERS
        valid = sum(guess is not None for guess in guesses) / max(1, len(guesses))
        metrics = {"solved": float(solved), "valid": valid, "best_green": float(best)}
        return RewardResult(total, metrics, {"word": word})

    def gold_completion(self, sample: Sample) -> Sequence[str]:
        return [sample.answer]

    def worked_examples(self, seed: int) -> Iterator[WorkedExample]:
        """Players who guess at random, and then the word."""
        rng = random.Random(f"wordle worked {seed}")
        samples = self.samples("train")
        while True:
            sample = rng.choice(samples)
            wrong = rng.choice([word for word in self._train if word != sample.answer])
            reply = f"\n{wrong} {marked(wrong, sample.answer)}. Your guess: "
            yield str(sample.prompt), [wrong, reply, sample.answer]

    def _rules(self) -> str:
        return (
            f"Guess a word of {LETTERS} letters in {self.max_turns} turns. After a guess: G the letter stands there, "
            "Y elsewhere, X not at all."
        )


def guess_of(turn: str) -> str | None:
    """The guess of a turn, in small letters; None when it is no word of five letters."""
    found: list[Any] = GUESS.findall(turn)
    guess = (found[-1] if found else turn).strip().lower()
    return guess if len(guess) == LETTERS and guess.isascii() and guess.isalpha() else None


def marked(guess: str, word: str) -> str:
    """One mark a letter. A letter is marked as often as the word has it, those in place first."""
    left = Counter(right for letter, right in zip(guess, word, strict=True) if letter != right)
    marks = []
    for letter, right in zip(guess, word, strict=True):
        if letter == right:
            marks.append("G")
        elif left[letter] > 0:
            left[letter] -= 1
            marks.append("Y")
        else:
            marks.append("X")
    return "".join(marks)
