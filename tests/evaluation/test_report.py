"""Tables say what was measured; pages need nothing else and are never half written; figures take the page's colours."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import matplotlib as mpl
import matplotlib.image
import pytest
import torch

from repulse import CheckpointError, ClassPrediction, DataError
from repulse import _files as files
from repulse._files import write_whole
from repulse.evaluation.page import Gallery, Page, Picture, Section
from repulse.evaluation.plots import INK, PALETTE, panels, png_of, reliability_diagram, roc, to_svg, uncertainty_map
from repulse.evaluation.table import Column, Table

NASTY = """<script>alert("1")</script> & 'x'"""
VOID = {"meta", "img", "br", "link", "input"}


@pytest.fixture
def table():
    table = Table("method", [Column("acc", 1, "higher", 'Share <of> "right".'), Column("ece", 2, "lower"), Column("s")])
    table.add("network", [[97.0, 0.5, 1.0], [98.0, 0.6, 3.0]])
    table.add("<b>&", [[99.0, 0.5, float("nan")], [98.0, 0.6, 2.0]])
    table.add("broken", [[float("nan"), float("inf"), 0.0], [98.0, 0.1, 0.0]])
    return table


def test_cells_are_mean_and_sample_deviation(table):
    assert [table.cell(0, j) for j in range(3)] == ["97.5 ± 0.7", "0.55 ± 0.07", "2.0 ± 1.4"]
    single = Table("m", [Column("a", 3)])
    single.add("x", [[0.12345]])
    assert single.cell(0, 0) == "0.123"


def test_a_seed_without_a_number_leaves_the_cell_empty_and_never_best(table):
    assert [table.cell(2, j) for j in range(3)] == ["–", "–", "0.0 ± 0.0"]
    assert not any(table.is_best(2, j) for j in range(3))


def test_the_best_is_marked_unless_all_are_equal(table):
    assert [table.is_best(i, 0) for i in range(3)] == [False, True, False]
    assert [table.is_best(i, 1) for i in range(3)] == [False, False, False]  # equal
    assert [table.is_best(i, 2) for i in range(3)] == [False, False, False]  # no better in this column
    table.columns = [Column("acc", 0, "higher"), *table.columns[1:]]
    table.rows[1][1][0][0] = 97.5  # 97.75 and 97.5: equal as printed
    assert [table.is_best(i, 0) for i in range(2)] == [False, False]


@pytest.mark.parametrize("seeds", [[[1.0]], [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]]])
def test_rows_of_another_length_are_refused(table, seeds):
    with pytest.raises(DataError, match=r"Expected row 'x' to be 3 values per seed, but got [14]\."):
        table.add("x", seeds)
    assert len(table.rows) == 3


def test_rows_without_any_seed_are_refused(table):
    with pytest.raises(DataError, match="Expected row 'x' to be"):
        table.add("x", [])


def test_text_is_aligned(table):
    head, *rows = table.text().splitlines()
    columns = [m.start() for m in re.finditer(r"(?<=\s\s)\S|^\S", head)]
    assert len(columns) == 4
    for row in rows:
        assert [m.start() for m in re.finditer(r"(?<=\s\s)\S|^\S", row)] == columns
        assert row == row.rstrip()
    assert "98.5 ± 0.7 *" in rows[1]
    assert sum(row.count("*") for row in rows) == 1


def test_markdown_has_a_column_for_each_column(table):
    lines = table.markdown().splitlines()
    assert lines[0] == "| method | acc ↑ | ece ↓ | s |"
    assert lines[1] == "| --- | --- | --- | --- |"
    assert "**98.5 ± 0.7**" in lines[3]
    assert [line.count("|") for line in lines] == [5] * 5


def test_markdown_escapes_a_bar_in_a_name(table):
    table.add("a|b", [[1.0, 1.0, 1.0]])
    assert len(re.findall(r"(?<!\\)\|", table.markdown().splitlines()[-1])) == 5


class Reader(HTMLParser):
    """Tags that are closed in order, all attributes, all text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_html_table_escapes_and_marks(table):
    reader = Reader(table.html())
    assert reader.tags.count("tr") == 4
    assert reader.tags.count("td") == 9
    assert "b" not in reader.tags
    assert "<b>&" in reader.text
    assert ("th", "title", 'Share <of> "right".') in reader.attributes
    assert reader.attributes.count(("td", "class", "best")) == 1


def predictions(seed=0):
    g = torch.Generator().manual_seed(seed)
    return ClassPrediction((3 * torch.randn(4, 50, 3, generator=g)).log_softmax(dim=-1))


def figures():
    a, b = predictions(0), predictions(1)
    targets = torch.arange(50) % 3
    return {
        "map": panels([uncertainty_map({"one": a, "two": b}, "map")] * 2, share=True),
        "reliability": panels([reliability_diagram({"one": a, "two": b}, targets)]),
        "roc": panels([roc({"one": (a.epistemic, b.epistemic + 0.1)}, "roc")]),
    }


@pytest.mark.parametrize("kind", ["map", "reliability", "roc"])
def test_figures_are_svg_in_the_colours_of_the_page(kind):
    before = dict(mpl.rcParams)
    svg = to_svg(figures()[kind])
    assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert "currentColor" in svg
    assert INK not in svg
    assert "#000000" not in svg  # nothing that would vanish on a dark page, nor letters in the default black
    assert all("fill: currentColor" in text for text in re.findall(r"<text [^>]*>", svg))
    assert PALETTE[0] in svg or kind == "map"  # whose dots are pixels
    assert ">one" in svg  # letters are letters
    assert svg == to_svg(figures()[kind])
    assert dict(mpl.rcParams) == before


def test_every_group_is_drawn():
    groups = {f"group {i}": predictions(i) for i in range(len(PALETTE) + 1)}
    svg = to_svg(panels([uncertainty_map(groups, "many")]))
    assert [name for name in groups if f">{name}<" not in svg] == []


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_png_files_of_their_pixels(channels):
    image = torch.rand(channels, 5, 7, generator=torch.Generator().manual_seed(0))
    read = torch.from_numpy(mpl.image.imread(io.BytesIO(png_of(image)))).view(5, 7, channels).permute(2, 0, 1)
    assert torch.allclose(read, image, atol=0.5 / 255 + 1e-6)


@pytest.fixture
def page(table):
    pictures = [Picture(png_of(torch.rand(c, 8, 8)), NASTY, NASTY) for c in (1, 3)]
    sections = [
        Section(NASTY, [NASTY, NASTY], table=table.html(), figure=to_svg(figures()["map"]), figure_alt=NASTY),
        Section("Pictures", galleries=[Gallery(NASTY, pictures)], figure=to_svg(figures()["roc"])),
    ]
    return Page(NASTY, NASTY, sections, NASTY)


def test_a_page_needs_nothing_else_and_escapes_what_it_shows(page, tmp_path):
    path = page.write(tmp_path / "new" / "index.html")
    html = path.read_text(encoding="utf-8")
    reader = Reader(html)
    assert "script" not in reader.tags
    assert "link" not in reader.tags
    loads = [v for _, name, v in reader.attributes if name in ("src", "href", "xlink:href", "srcset", "data", "action")]
    assert loads
    assert all(value.startswith(("data:image/png;base64,", "#")) for value in loads)
    assert set(re.findall(r"url\((.)", html)) <= {"#"}
    assert "@import" not in html
    assert reader.text.count(NASTY) == 10  # title twice, lead, heading, two paragraphs, gallery, two captions, footer
    assert [v for tag, name, v in reader.attributes if (tag, name) == ("img", "alt")] == [NASTY, NASTY]
    names = [value for _, name, value in reader.attributes if name == "id"]
    assert {v[1:] for v in loads if v[0] == "#"} <= set(names)


def test_a_failing_write_leaves_the_old_page_and_nothing_else(page, tmp_path):
    path = page.write(tmp_path / "index.html")
    old, mask = path.read_bytes(), os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    with pytest.raises(UnicodeEncodeError):
        Page("half \ud800", "a lone surrogate cannot be written").write(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match="folder"):
        page.write(tmp_path / "folder")
    assert path.read_bytes() == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "index.html"]
    assert write_whole(path, "new").read_text() == "new"


def test_a_write_killed_half_way_leaves_the_old_page(tmp_path):
    """The system kills a process at the first byte beyond its limit on the size of files."""
    path = tmp_path / "index.html"
    path.write_text("old")
    script = f"""if True:
        import importlib.util, resource, signal
        spec = importlib.util.spec_from_file_location("page", {files.__file__!r})
        import sys; sys.modules["page"] = page = importlib.util.module_from_spec(spec); spec.loader.exec_module(page)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        page.write_whole({str(path)!r}, "new" * 100_000)
    """
    done = subprocess.run([sys.executable, "-c", script], check=False, cwd=tmp_path)
    assert done.returncode == -signal.SIGXFSZ
    assert path.read_text() == "old"
