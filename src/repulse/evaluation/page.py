"""One HTML page that needs nothing else: no network, no scripts, figures and pictures inside."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from repulse._files import write_whole


@dataclass(frozen=True)
class Picture:
    """A small image with a caption.

    Attributes:
        png: its bytes.
        caption: one or two short lines.
        alt: what it shows, for those who cannot see it.
    """

    png: bytes
    caption: str
    alt: str

    @property
    def source(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


@dataclass(frozen=True)
class Gallery:
    """A row of pictures under a heading."""

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
    """A page: title, the finding in one or two sentences, sections."""

    title: str
    lead: str
    sections: Sequence[Section] = field(default_factory=list)
    footer: str = ""

    def html(self) -> str:
        """The page as one string."""
        from jinja2 import Environment, PackageLoader, select_autoescape

        loader = PackageLoader("repulse.evaluation", package_path="")
        environment = Environment(
            loader=loader, autoescape=select_autoescape(["html"]), trim_blocks=True, lstrip_blocks=True
        )
        return environment.get_template("page.html").render(page=self)

    def write(self, path: str | Path) -> Path:
        """Write the page; a kill leaves the old file or the new one, never half of one."""
        return write_whole(path, self.html())
