"""Checked claims: the role `{checked}`, a badge at the end of a sentence, and the directive `{claims}`, a table of all.

A chapter's folded cell checks a claim with `collectives.chapter.claim`, which stores it in the notebook as data. Each
build makes badges and table from that data, so they always agree with the cells. A badge shows claim, verdict and
evidence when a reader hovers over it, moves the focus to it or taps it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

from collectives.chapter import CLAIM_TYPE, SOURCES, VERDICTS

SCRIPT = Path(__file__).with_name("checked.js")
FOUND = {"true": "is true", "false": "is false", "depends": "depends"}  # as the verb of a sentence


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
        f'<tr id="row-{claim["id"]}" data-verdict="{claim["verdict"]}"><td>{link}</td><td>{says}</td>'
        f'<td data-head="Source">{sources}</td><td>{verdict}</td></tr>'
    )


class Checked(SphinxRole):
    """A badge for a claim that this page checks: {checked}`C12`."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """As `SphinxRole.run`."""
        read = self.env.temp_data  # of this page: its notebook is read once, however many badges there are
        if "checked_claims" not in read:
            notebook = Path(self.env.srcdir, f"{self.env.docname}.ipynb")
            self.env.note_dependency(str(notebook))
            read["checked_claims"] = {each["id"]: each for each in claims_in(notebook)} if notebook.exists() else {}
        claim = read["checked_claims"].get(self.text)
        if claim is None:
            text = f"no cell of {self.env.docname} checks a claim {self.text!r}: write the cell, then `make notebooks`"
            return [], [self.inliner.reporter.warning(text, line=self.lineno)]
        return [nodes.raw("", badge(claim), format="html")], []


def badge(claim: dict) -> str:
    """Return a claim's badge with its card, which CSS shows."""
    id, verdict, says = claim["id"], claim["verdict"], escape(claim["says"])
    sources = escape("; ".join(SOURCES[each] for each in claim["sources"].split()))
    return (
        f'<span class="checked" id="{id}" data-verdict="{verdict}">'
        f'<button type="button" popovertarget="card-{id}" popovertargetaction="show" aria-label="checked: claim {id}">'
        "checked</button>"
        f'<span class="claim-card" popover role="note" id="card-{id}">'
        f'<span class="claim-head"><span class="claim-id">{id}</span> <em class="claim-verdict">{verdict}</em></span>'
        f'<span class="claim-text">Published: {says} <span class="claim-source">({sources})</span></span>'
        f'<span class="claim-evidence">Checked, and it {FOUND[verdict]}: {escape(claim["evidence"])}</span>'
        f'<span><a href="#check-{id}">The check</a> · <a href="claims.html#row-{id}">All claims</a></span>'
        "</span></span>"
    )


def add_script(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None) -> None:
    """Give a page with badges the script that shows their cards."""
    if '<span class="checked"' in context.get("body", ""):
        context["body"] += f"<script>{SCRIPT.read_text(encoding='utf-8')}</script>"


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
    """Register the directive and the role."""
    app.add_directive("claims", Claims)
    app.add_role("checked", Checked())
    app.connect("html-page-context", add_script)
    return {"parallel_read_safe": True}
