r"""math: problems whose answer is a formula or a number in `\boxed{…}`, compared by math-verify.

Without data of your own it makes equations, sums of fractions, powers and derivatives; with `path` or `dataset_name`
it reads rows with a problem and an answer (or a solution that boxes it), such as those of MATH.
"""

import random
from fractions import Fraction

from environments.support.boxed import BoxedAnswers
from environments.support.data import Row, field
from environments.support.math_answers import last_boxed


class Math(BoxedAnswers):
    def made(self, rng: random.Random) -> tuple[str, str]:
        return rng.choice((linear_equation, sum_of_fractions, power, derivative, quadratic_roots))(rng)

    def answer_of(self, row: Row) -> str:
        text = field(row, ("answer", "solution"), "an answer")
        boxed = last_boxed(text)
        return text.strip() if boxed is None else boxed


def linear_equation(rng: random.Random) -> tuple[str, str]:
    a, b, c = rng.randint(2, 9), rng.randint(-20, 20), rng.randint(-20, 20)
    return f"Solve ${a}x {b:+d} = {c}$ for $x$.", latex(Fraction(c - b, a))


def sum_of_fractions(rng: random.Random) -> tuple[str, str]:
    one, two = (Fraction(rng.randint(1, 11), rng.randint(2, 12)) for _ in range(2))
    return f"What is ${latex(one)} + {latex(two)}$?", latex(one + two)


def power(rng: random.Random) -> tuple[str, str]:
    base, exponent = rng.randint(2, 15), rng.randint(2, 4)
    shift = rng.randint(1, 50)
    return f"What is ${base}^{exponent} - {shift}$?", str(base**exponent - shift)


def derivative(rng: random.Random) -> tuple[str, str]:
    a, n, b = rng.randint(2, 9), rng.randint(3, 6), rng.randint(2, 9)
    inner = "x" if n == 2 else f"x^{{{n - 1}}}"
    return f"What is the derivative of ${a}x^{n} + {b}x$?", f"{a * n}{inner}+{b}"


def quadratic_roots(rng: random.Random) -> tuple[str, str]:
    one, two = sorted(rng.sample(range(-9, 10), 2))
    b, c = -(one + two), one * two
    return f"Which set of real $x$ solves $x^2 {b:+d}x {c:+d} = 0$?", f"\\{{{one}, {two}\\}}"


def latex(number: Fraction) -> str:
    """Without a common divisor, the sign in front."""
    if number.denominator == 1:
        return str(number.numerator)
    sign = "-" if number < 0 else ""
    return f"{sign}\\frac{{{abs(number.numerator)}}}{{{number.denominator}}}"
