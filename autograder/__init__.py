"""A grader for nbgrader's courses that a hostile submission cannot fool.

In the `nbgrader_config.py` of any course:

    from autograder import configure

    c = get_config()
    configure(c)
"""

from __future__ import annotations

from typing import Any

_AFTERWARDS = (  # nbgrader's own, which read the points from the outputs and write them into the gradebook
    "nbgrader.preprocessors.IgnorePattern",
    "nbconvert.preprocessors.ClearMetadataPreprocessor",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
)


def configure(c: Any, **settings: Any) -> None:
    """Have the judge run submissions in place of nbgrader's `Execute`. `settings`: see `judge.Settings`."""
    c.Autograde.exporter_class = "autograder.judging.preprocessor.TakenIn"
    c.Autograde.autograde_preprocessors = [
        "autograder.judging.preprocessor.Judge",
        *_AFTERWARDS,
        "autograder.results.feedback.Inert",
    ]
    c.GenerateFeedback.exporter_class = "autograder.results.feedback.InertPage"
    for name, value in settings.items():
        c.Judge[name] = value
