"""Keeps one copy of the figures' styles and scripts on each page.

In a notebook every figure carries its own copy, because any cell may be shown alone. A page shows all figures together,
so later identical copies are dropped.
"""

import re

CARRIED = re.compile(r"<(style|script)>.*?</\1>", re.DOTALL)


def once(html: str) -> str:
    """Return a page without the second and later copies of a style or script."""
    seen = set()

    def keep_first(match: re.Match) -> str:
        if match[0] in seen:
            return ""
        seen.add(match[0])
        return match[0]

    return CARRIED.sub(keep_first, html)


def share_scripts(app, pagename, templatename, context, doctree):
    """Drop the copies from a page with figures, before it is written."""
    if "<collective-" in context.get("body", ""):
        context["body"] = once(context["body"])


def setup(app):
    """Run on every page."""
    app.connect("html-page-context", share_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
