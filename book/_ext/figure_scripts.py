"""Keeps one copy of the figures' style and scripts on each page.

In a notebook every figure carries all that it needs, since any cell may be shown alone. A page shows them together:
what it holds once more, word for word, is left out.
"""

import re

CARRIED = re.compile(r"<(style|script)>.*?</\1>", re.DOTALL)


def once(html: str) -> str:
    """The page without the second and later copies of a style or a script."""
    seen = set()

    def keep_first(found: re.Match) -> str:
        if found[0] in seen:
            return ""
        seen.add(found[0])
        return found[0]

    return CARRIED.sub(keep_first, html)


def share_scripts(app, pagename, templatename, context, doctree):
    """Before the page is written."""
    if "<collective-" in context.get("body", ""):
        context["body"] = once(context["body"])


def setup(app):
    """Run on every page."""
    app.connect("html-page-context", share_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
