"""One self-contained HTML page: no network, no scripts, figures and pictures inside."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from repulse._files import explaining_writes, write_whole


@dataclass(frozen=True)
class Picture:
    """A small image with a caption.

    Attributes:
        png: bytes of a PNG file.
        caption: one or two short lines.
        alt: what it shows, for those who cannot see it.
    """

    png: bytes
    caption: str
    alt: str

    @property
    def source(self) -> str:
        """The image as a data URL."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


@dataclass(frozen=True)
class Gallery:
    """A row of pictures under a heading.

    Attributes:
        title: heading.
        pictures: from left to right.
    """

    title: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Section:
    """A heading, some text, and a table, a figure or galleries.

    Attributes:
        title: heading.
        text: paragraphs of plain text.
        table: HTML of a table.
        figure: SVG text.
        figure_alt: what the figure shows, in words.
        galleries: rows of pictures.
    """

    title: str
    text: Sequence[str] = ()
    table: str = ""
    figure: str = ""
    figure_alt: str = ""
    galleries: Sequence[Gallery] = ()


@dataclass(frozen=True)
class Page:
    """A page: title, the finding in one or two sentences, sections.

    Attributes:
        title: heading of the page.
        lead: the finding.
        sections: from top to bottom.
        footer: last line.
    """

    title: str
    lead: str
    sections: Sequence[Section] = field(default_factory=list)
    footer: str = ""

    def html(self) -> str:
        """Return the page as one string."""
        sections = "".join(_section(f"s{i}", section) for i, section in enumerate(self.sections, start=1))
        style = files("repulse.evaluation").joinpath("page.css").read_text(encoding="utf-8")
        body = _BODY.substitute(
            title=escape(self.title), lead=escape(self.lead), sections=sections, footer=escape(self.footer)
        )
        return document(self.title, style, body)

    def write(self, path: str | Path) -> Path:
        """Write the page; an interruption leaves the old file or the new one, never half of one."""
        with explaining_writes(path):
            return write_whole(path, self.html())


def document(title: str, style: str, body: str, script: str = "") -> str:
    """Return a whole HTML document, which a browser will not let load anything from elsewhere.

    Args:
        title: plain text.
        style: CSS.
        body: HTML.
        script: JavaScript at the end of the body; without it, none is allowed.
    """
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    policy += "; script-src 'unsafe-inline'" if script else ""
    end = f"<script>\n{script}</script>\n" if script else ""
    return _DOCUMENT.substitute(title=escape(title), style=style, body=body, policy=policy, script=end)


_DOCUMENT = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
$style</style>
</head>
<body>
$body$script</body>
</html>
""")
_BODY = Template("""<main>
<h1>$title</h1>
<p class="lead">$lead</p>
$sections<footer>$footer</footer>
</main>
""")


def _section(name: str, section: Section) -> str:
    title = escape(section.title)
    parts = [f'<section aria-labelledby="{name}">', f'<h2 id="{name}">{title}</h2>']
    parts += [f"<p>{escape(paragraph)}</p>" for paragraph in section.text]
    if section.table:
        parts.append(f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">{section.table}</div>')
    if section.figure:
        alt = escape(section.figure_alt)
        parts.append(f'<div class="figure" role="img" aria-label="{alt}">{section.figure}</div>')
    parts += [_gallery(gallery) for gallery in section.galleries]
    return "\n".join([*parts, "</section>\n"])


def _gallery(gallery: Gallery) -> str:
    pictures = [
        f'<figure><img src="{picture.source}" alt="{escape(picture.alt)}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
        for picture in gallery.pictures
    ]
    return "\n".join([f"<h3>{escape(gallery.title)}</h3>", '<div class="row">', *pictures, "</div>"])
