"""Quick checks: questions on the page that respond at once, without a kernel, and explain what a wrong answer means.

The cell that asks a question computes the right answer and each plausible wrong one, with the library or from the
chapter's earlier results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from itertools import pairwise

from .player import asset

Answer = str | float


@dataclass(frozen=True)
class Question:
    """A question with one right answer, and an explanation for each answer.

    Answers are all texts or all numbers. The reader picks one of the texts, or types a number in `unit`. A typed number
    counts as the answer that it is within `tolerance` of, a fraction of that answer. `because`: the explanation of the
    right answer. `wrong`: {wrong answer: its explanation}. Raises `ValueError` if a text is missing or two numbers are
    too close to tell apart.
    """

    text: str
    right: Answer
    because: str
    wrong: Mapping[Answer, str]
    unit: str = ""
    tolerance: float = 0.01
    answers: dict[Answer, str] = field(init=False, repr=False)

    def __post_init__(self):
        object.__setattr__(self, "answers", {self.right: self.because, **self.wrong})
        if not self.text.strip():
            raise ValueError("a question needs a text")
        if self.right in self.wrong:
            raise ValueError(f"{self.text!r}: the right answer {self.right!r} is also a wrong one")
        if not self.wrong:
            raise ValueError(f"{self.text!r}: give at least one wrong answer")
        for answer, explanation in self.answers.items():
            if not explanation.strip():
                raise ValueError(f"{self.text!r}: the answer {answer!r} has no explanation")
        are_texts = [isinstance(answer, str) for answer in self.answers]
        if any(are_texts) and not all(are_texts):
            raise ValueError(f"{self.text!r}: answers must be all texts or all numbers")
        if not any(are_texts):
            self._check_numbers()
        elif self.unit:
            raise ValueError(f"{self.text!r}: only numbers take a unit; write it into the texts instead")

    def _check_numbers(self) -> None:
        numbers = sorted(map(float, self.answers))
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"{self.text!r}: every answer must be a finite number")
        for low, high in pairwise(numbers):
            if low + self.tolerance * abs(low) >= high - self.tolerance * abs(high):
                raise ValueError(
                    f"{self.text!r}: the answers {low:g} and {high:g} are too close to tell apart; lower the tolerance"
                )

    @property
    def is_typed(self) -> bool:
        """Whether the reader types a number."""
        return not isinstance(self.right, str)

    @property
    def options(self) -> list[Answer]:
        """The answers in an order that never changes and doesn't give the right one away."""
        return sorted(self.answers, key=lambda answer: sha256(f"{self.text}{answer}".encode()).hexdigest())

    def named(self, answer: Answer) -> str:
        """Return an answer as the reader sees it: "1.75 GB"."""
        return answer if isinstance(answer, str) else f"{answer:,.10g} {self.unit}".strip()

    def data(self) -> dict:
        """Return what the page needs, as plain data."""
        return {
            "text": self.text,
            "typed": self.is_typed,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "right": self.options.index(self.right),
            "options": [[float(each) if self.is_typed else each, self.answers[each]] for each in self.options],
        }


class Quiz:
    """Questions that the reader answers on the page. Without JavaScript they are text, with the answers folded."""

    def __init__(self, *questions: Question):
        if not questions:
            raise ValueError("a quiz needs at least one question")
        self.questions = questions

    def __repr__(self) -> str:
        lines = []
        for number, each in enumerate(self.questions, 1):
            lines.append(f"{number}. {each.text}" + (f" (in {each.unit})" if each.unit else ""))
            lines += [f"   - {option}" for option in each.options if not each.is_typed]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.html()

    def html(self) -> str:
        """Return the questions with data, style, script and plain form: self-contained, the same bytes every time."""
        data = json.dumps([each.data() for each in self.questions], separators=(",", ":"), allow_nan=False)
        data = data.replace("<", "\\u003c")
        return (
            "<collective-quiz>"
            f"<style>{asset('quiz.css')}</style><ol class=still>{''.join(map(_plain, self.questions))}</ol>"
            f'<script type="application/json">{data}</script></collective-quiz>'
            f"<script>{asset('quiz.js')}</script>"
        )


def _plain(question: Question) -> str:
    number = f"a number, in {question.unit}" if question.unit else "a number"
    hint = f" ({escape(number)})" if question.is_typed else ""
    options = "".join(f"<li>{escape(str(option))}</li>" for option in question.options if not question.is_typed)
    return (
        f"<li><p>{escape(question.text)}{hint}</p>{f'<ul>{options}</ul>' if options else ''}"
        f"<details><summary>Answer</summary><p><strong>{escape(question.named(question.right))}.</strong> "
        f"{escape(question.because)}</p></details></li>"
    )
