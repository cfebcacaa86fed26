"""The directive `{claims}`: a table of every claim that the book's executed notebooks check.

A chapter's cell shows a claim with `collectives.chapter.claim`, which stores it in the notebook as data. Each build
makes the table from that data, so it always agrees with the cells, and links to them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from collectives.chapter import CLAIM_TYPE, SOURCES, VERDICTS


def claims_in(notebook: Path) -> Iterator[dict]:
    """Yield the claims in an executed notebook's outputs, in order."""
    for cell in json.loads(notebook.read_text())["cells"]:
        for output in cell.get("outputs", []):
            if claim := output.get("data", {}).get(CLAIM_TYPE):
                yield claim


def row(page: str, claim: dict) -> str:
    """Return one row of the table as HTML. `page`: the chapter that shows the claim."""
    says, evidence = escape(claim["says"]), escape(claim["evidence"])
    sources = escape(", ".join(claim["sources"].split()))
    link = f'<a href="{page}.html#{claim["id"]}">{claim["id"]}</a>'
    verdict = f'<span class="claim-verdict">{claim["verdict"]}</span> {evidence}'
    return (
        f'<tr data-verdict="{claim["verdict"]}"><td>{link}</td><td>{says}</td>'
        f'<td data-head="Source">{sources}</td><td>{verdict}</td></tr>'
    )


class Claims(SphinxDirective):
    """The table of claims, a count of the verdicts, and the list of sources."""

    def run(self) -> list[nodes.Node]:
        folder = Path(self.env.srcdir)
        claims = []
        for notebook in sorted(folder.glob("*.ipynb")):
            self.env.note_dependency(str(notebook))
            claims += [(claim["id"], notebook.stem, claim) for claim in claims_in(notebook)]
        if not claims:
            raise self.error(f"no executed notebook in {folder} has a claim: run `make notebooks`")
        rows = "".join(row(page, claim) for _, page, claim in sorted(claims, key=lambda entry: entry[0]))
        verdicts = [claim["verdict"] for *_, claim in claims]
        counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS)
        sources = "".join(f"<dt>{name}</dt><dd>{escape(what)}</dd>" for name, what in SOURCES.items())
        head = "<tr><th>Row</th><th>Claim</th><th>Source</th><th>Verdict, and what was computed</th></tr>"
        html = (
            f"<p>{len(claims)} claims: {counts}.</p>"
            f'<div class="claims-table" tabindex="0"><table class="claims"><thead>{head}</thead>'
            f"<tbody>{rows}</tbody></table></div>"
            f'<dl class="claims-sources">{sources}</dl>'
        )
        return [nodes.raw("", html, format="html")]


def setup(app: Sphinx) -> dict:
    """Register the directive."""
    app.add_directive("claims", Claims)
    return {"parallel_read_safe": True}
