"""Arithmetic written by a model, worked out exactly: numbers, + - * / and brackets are read, nothing is executed."""

import ast
import operator
import re
from collections import Counter
from fractions import Fraction

ARITHMETIC = re.compile(r"[0-9+\-*/(). ]*")
MAX_EXPRESSION = 200
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def worked_out(expression: str, has_signs: bool = True) -> tuple[Fraction, Counter[Fraction]]:
    """The value of an expression, and how often each number stands in it. ValueError says what is wrong with it.

    has_signs: whether a number or bracket may have a minus of its own.
    """
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"an expression has at most {MAX_EXPRESSION} characters, got {len(expression)}")
    if not ARITHMETIC.fullmatch(expression):
        raise ValueError("an expression has digits, + - * / and brackets only")
    try:
        text = expression.strip()
        used: Counter[Fraction] = Counter()
        return _value(ast.parse(text, mode="eval").body, text, used, has_signs), used
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("this is not an expression") from None


def _value(node: ast.expr, text: str, used: Counter[Fraction], has_signs: bool) -> Fraction:
    match node:
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(left, text, used, has_signs), _value(right, text, used, has_signs))
        case ast.UnaryOp(ast.USub(), operand) if has_signs:
            return -_value(operand, text, used, has_signs)
        case ast.Constant(int() | float()):  # a float has lost digits, which the text still has
            value = Fraction(text[node.col_offset : node.end_col_offset])
            used[value] += 1
            return value
    raise ValueError("only + - * / and brackets can be worked out")
