"""A grader for nbgrader courses that a hostile submission can't fool.

Add to the `nbgrader_config.py` of any course:

    from autograder import configure

    c = get_config()
    configure(c)
"""

from __future__ import annotations

from typing import Any

# nbgrader's own preprocessors, which read the points from the outputs and write them into the gradebook.
_AFTERWARDS = (
    "nbgrader.preprocessors.IgnorePattern",
    "nbconvert.preprocessors.ClearMetadataPreprocessor",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
)


def configure(c: Any, **settings: Any) -> None:
    """Make the judge run submissions in place of nbgrader's `Execute`, and collect only what students own.

    `c`: nbgrader's config object. `settings`: any of `judging.judge.Settings`, and of `Judge`'s own `verdicts`.
    """
    c.Autograde.exporter_class = "autograder.judging.preprocessor.TakenIn"
    c.Autograde.autograde_preprocessors = [
        "autograder.judging.preprocessor.Judge",
        *_AFTERWARDS,
        "autograder.results.feedback.Inert",
    ]
    c.GenerateFeedback.preprocessors = ["autograder.results.feedback.Grades"]
    c.GenerateFeedback.exporter_class = "autograder.results.feedback.InertPage"
    for step, ours in (("collect", "SafeCollect"), ("release_feedback", "SafeRelease")):  # unless another exchange's
        c.ExchangeFactory.setdefault(step, f"autograder.submissions.exchange.{ours}")
    for name, value in settings.items():
        c.Judge[name] = value
