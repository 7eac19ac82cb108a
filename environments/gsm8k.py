r"""gsm8k: word problems of primary school, with a number in `\boxed{…}`.

Without data of your own it makes problems of two to three steps; with `path` or `dataset_name` (on the hub:
"openai/gsm8k", `dataset_config` "main") it reads rows of a question and an answer that ends in `#### 42`.
"""

import random

from environments.support.boxed import BoxedAnswers
from environments.support.data import Row, field

NAMES = ("Ada", "Ben", "Chen", "Dina", "Emil", "Fatou", "Gus", "Hana", "Ivo", "June")
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pens", "shells", "stamps", "stickers")


class GSM8K(BoxedAnswers):
    def made(self, rng: random.Random) -> tuple[str, str]:
        return rng.choice((boxes, shopping, sharing, walking))(rng)

    def answer_of(self, row: Row) -> str:
        return field(row, ("answer", "solution"), "an answer").rpartition("####")[2].strip()


def boxes(rng: random.Random) -> tuple[str, str]:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    count, each, lost = rng.randint(2, 12), rng.randint(3, 20), rng.randint(1, 5)
    story = f"{name} has {count} boxes with {each} {thing} each and gives away {lost} {thing}."
    return f"{story} How many {thing} are left?", str(count * each - lost)


def shopping(rng: random.Random) -> tuple[str, str]:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    count, price = rng.randint(2, 9), rng.randint(2, 15)
    paid = count * price + rng.randint(1, 40)
    story = f"{name} buys {count} {thing} at {price} dollars each and pays with {paid} dollars."
    return f"{story} How much change does {name} get?", str(paid - count * price)


def sharing(rng: random.Random) -> tuple[str, str]:
    (name, other), thing = rng.sample(NAMES, 2), rng.choice(THINGS)
    friends, each, found = rng.randint(2, 8), rng.randint(2, 12), rng.randint(1, 20)
    story = f"{name} shares {friends * each} {thing} evenly among {friends} friends."
    then = f"{other}, one of them, finds {found} more. How many {thing} does {other} have then?"
    return f"{story} {then}", str(each + found)


def walking(rng: random.Random) -> tuple[str, str]:
    name, speed, hours, rest = rng.choice(NAMES), rng.randint(3, 7), rng.randint(2, 6), rng.randint(1, 9)
    story = f"{name} walks {hours} hours at {speed} km an hour, rests, and walks another {rest} km."
    return f"{story} How many km is that in all?", str(speed * hours + rest)
