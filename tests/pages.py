"""What the tests of all figures ask of a page that a real browser has laid out."""

# As strict as a page with our scripts in line can be: nothing from outside, and no text evaluated as code.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
STRICT_HEAD = (
    f'<meta charset=utf-8><meta http-equiv="Content-Security-Policy" content="{POLICY}"><meta name=viewport '
    'content="width=device-width"><meta name=color-scheme content="light dark"><title>calculators</title>'
)


def wait_until_laid_out(page) -> None:
    """Until each picture that is laid out for its width has that width: a unit of its SVG is a pixel then."""
    page.wait_for_function(
        "[...document.querySelectorAll('.stage')].every((stage) => "
        "Math.abs(stage.querySelector('svg').viewBox.baseVal.width - stage.clientWidth) < 1)"
    )


def hold_time(page) -> None:
    """Let the page's time stand still but for `page.clock.run_for`, whatever the machine does meanwhile."""
    page.clock.install()
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 1)


def fits(page) -> bool:
    """Whether nothing has to be scrolled to the side."""
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def letter_heights(page, pictures: str = ".stage > svg") -> list[float]:
    """Of each text in the pictures that a selector finds, in pixels."""
    return page.evaluate(
        "(pictures) => [...document.querySelectorAll(pictures)].flatMap((svg) => [...svg.querySelectorAll('text')])"
        ".filter((text) => text.textContent).map((text) => text.getBoundingClientRect().height)",
        pictures,
    )


def texts_outside(page, pictures: str = ".stage > svg") -> list[str]:
    """The texts that leave their picture at a side."""
    return page.evaluate(
        "(pictures) => [...document.querySelectorAll(pictures)].flatMap((svg) => [...svg.querySelectorAll('text')]"
        ".filter((text) => text.textContent && ("
        "text.getBoundingClientRect().right > svg.getBoundingClientRect().right + 1 || "
        "text.getBoundingClientRect().left < svg.getBoundingClientRect().left - 1)).map((text) => text.textContent))",
        pictures,
    )
