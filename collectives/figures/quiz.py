"""Quick checks: questions on the page that answer at once, without a kernel, and say what a wrong answer stands for.

What is right, and each number that somebody might take for it, are computed by the cell that asks: by the library, or
from what the chapter has found before.
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
    """A question with one right answer and, for each wrong one, what to say to whoever gives it.

    Answers are all texts, which are offered to choose from, or all numbers, one of which the reader types, in `unit`;
    then an answer counts as the one that it is within `tolerance` of, as a part of that one. `because`: said with the
    right one. Raises `ValueError` if the answers cannot be told apart or something is not said.
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
            raise ValueError("a question without a text")
        if self.right in self.wrong:
            raise ValueError(f"{self.text!r}: the right answer {self.right!r} is among the wrong ones")
        if not self.wrong:
            raise ValueError(f"{self.text!r}: no wrong answer")
        for answer, said in self.answers.items():
            if not said.strip():
                raise ValueError(f"{self.text!r}: nothing is said of the answer {answer!r}")
        texts = [isinstance(answer, str) for answer in self.answers]
        if any(texts) and not all(texts):
            raise ValueError(f"{self.text!r}: the answers are all texts or all numbers")
        if not any(texts):
            self._check_numbers()
        elif self.unit:
            raise ValueError(f"{self.text!r}: a unit is for numbers; texts have it in them")

    def _check_numbers(self) -> None:
        numbers = sorted(self.answers)
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"{self.text!r}: an answer is no finite number")
        for low, high in pairwise(numbers):
            if low + self.tolerance * abs(low) >= high - self.tolerance * abs(high):
                raise ValueError(f"{self.text!r}: the answers {low:g} and {high:g} are too near to tell them apart")

    @property
    def is_typed(self) -> bool:
        """Whether the reader types a number."""
        return not isinstance(self.right, str)

    @property
    def options(self) -> list[Answer]:
        """The answers, in an order that is always the same and tells nothing."""
        return sorted(self.answers, key=lambda answer: sha256(f"{self.text}{answer}".encode()).hexdigest())

    def named(self, answer: Answer) -> str:
        """An answer as it is shown: "1.75 GB"."""
        return answer if isinstance(answer, str) else f"{answer:,.10g} {self.unit}".strip()

    def data(self) -> dict:
        """What the page needs, as plain data."""
        return {
            "text": self.text,
            "typed": self.is_typed,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "right": self.options.index(self.right),
            "options": [[float(each) if self.is_typed else each, self.answers[each]] for each in self.options],
        }


class Quiz:
    """What a chapter's cell shows: some questions to answer on the page; elsewhere as text, the answers folded."""

    def __init__(self, *questions: Question):
        if not questions:
            raise ValueError("a quiz without questions")
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
        """The questions with their data, style, script and plain form: complete, and the same bytes every time."""
        data = json.dumps([each.data() for each in self.questions], separators=(",", ":"), allow_nan=False)
        data = data.replace("<", "\\u003c")
        return (
            "<collective-quiz>"
            f"<style>{asset('quiz.css')}</style><ol class=still>{''.join(map(_plain, self.questions))}</ol>"
            f'<script type="application/json">{data}</script></collective-quiz>'
            f"<script>{asset('quiz.js')}</script>"
        )


def _plain(question: Question) -> str:
    offered = "".join(f"<li>{escape(option)}</li>" for option in question.options if not question.is_typed)
    asked = (
        f" ({escape(f'a number, in {question.unit}' if question.unit else 'a number')})" if question.is_typed else ""
    )
    return (
        f"<li><p>{escape(question.text)}{asked}</p>{f'<ul>{offered}</ul>' if offered else ''}"
        f"<details><summary>Answer</summary><p><strong>{escape(question.named(question.right))}.</strong> "
        f"{escape(question.because)}</p></details></li>"
    )
