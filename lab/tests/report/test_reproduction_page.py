"""The page of a reproduction: what experiments left is all there, safe, and needs nothing else."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from reproduction_example import CLAIMS, NASTY, example, leave
from repulse import DataError
from repulse.errors import CheckpointError
from repulse.evaluation.table import Column, Table
from repulse_lab.report import views
from repulse_lab.report.reproduction import spans, write_report
from repulse_lab.study.claims import JudgedClaim, read_judged
from repulse_lab.study.figures import Figure, Line, Lines
from repulse_lab.study.output import FILE


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(leave(tmp_path_factory.mktemp("out") / "cpu", CLAIMS))


def test_the_page_is_one_file_that_points_nowhere_else(written):
    page = written.read_text(encoding="utf-8")
    assert written.name == "report.html"
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'" in page
    assert not re.search(r"https?:|@import|url\((?!#)|<link|<iframe|\bfetch\(|XMLHttpRequest|import\(", page)
    addresses = re.findall(r"""\b(?:src|href)=["']?([^"'\s>]+)""", page)
    assert addresses
    assert all(address.startswith("#") for address in addresses)
    assert len(page.rsplit("<script>")[-1]) < 40_000


def test_all_text_is_escaped(written):
    page = written.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert page.count("</script>") == page.count("<script") == 1 + sum(len(f.figures) for f in example())
    assert "&lt;script&gt;alert(&#34;1&#34;)&lt;/script&gt; &amp; &#39;x&#39;" in page
    data = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert [panel["title"] for panel in json.loads(data[-1])] == [NASTY]
    assert json.loads(data[-1])[0]["lines"][0]["y"] == [1.0, None, 3.0]


def test_every_link_within_the_page_has_its_target_and_ids_are_unique(written):
    page = written.read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)
    assert "elsewhere" in page
    assert "#elsewhere" not in page


def test_facts_counts_and_order(written):
    page = re.sub(r"<[^>]+>", "", written.read_text(encoding="utf-8").split("<main")[0].split("<header>")[1])
    text = " ".join(page.split())
    assert "Of 6 claims of the paper: 3 confirmed, 1 contradicted, 1 undecided, 1 not testable here." in text
    for fact in ("Presetcpu", "Experiments4", "Cells run76", "Seeds, at most3", "2026-11-16"):
        assert fact in text
    assert f"Compared with the paper{sum(len(t.printed) for f in example() for t in f.tables)} numbers" in text
    places = [text.index(source) for source in ("Table 1 Does", "Figure 2 Where", "Figure 4 Does", "beyond the paper")]
    assert places == sorted(places)


def test_without_claims_there_is_a_page_all_the_same(tmp_path):
    page = write_report(leave(tmp_path / "cpu"), tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    assert 'id="claims"' not in page
    assert "What 4 experiments found" in page


def test_a_folder_without_results_is_refused_and_the_right_one_named(tmp_path):
    with pytest.raises(
        DataError, match=r"Expected the folder .*nothing to be one that holds results, .* but got none\."
    ):
        write_report(tmp_path / "nothing")
    leave(tmp_path / "cpu")
    with pytest.raises(DataError, match=r"but got none; perhaps .*cpu is meant\.$"):
        write_report(tmp_path)
    (tmp_path / "cpu" / "nasty" / FILE).write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match="to be what an experiment wrote"):
        write_report(tmp_path / "cpu")
    assert not list(tmp_path.glob("**/report.html"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"verdict": "maybe"}, r"Expected the verdict of claim 'fs' to be one of 'confirmed', .* but got 'maybe'\."),
        ({"effect": math.nan}, "effect and interval of claim 'fs' to be finite"),
        ({"interval": [1.0]}, "to be finite numbers, one and two"),
        ({"sauce": "brown"}, "a list of claims"),
    ],
)
def test_damaged_claims_are_refused(tmp_path, changed, message):
    path = tmp_path / "claims.json"
    path.write_text(json.dumps({"format": 1, "claims": [CLAIMS[0] | changed]}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        read_judged(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"), [("[", "a list of claims"), ('{"format": 2, "claims": []}', "of format 1")]
)
def test_other_files_are_no_claims(tmp_path, text, message):
    (tmp_path / "claims.json").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        read_judged(tmp_path)


def test_differences_carry_a_sign_and_know_what_is_better():
    table = Table("m", [Column("acc", 1, "higher"), Column("ece", 2, "lower"), Column("s", 1)])
    table.add("a", [[91.0, 0.5, 3.0], [92.0, 0.7, 3.0]], marked=[1], printed=[90.0, 0.4, 2.0])
    table.add("b", [[math.nan, 0.4, 3.0]], printed=[90.0, 0.4, None])
    table.add("c", [[70.0, 0.3, 3.0]], printed=[90.0, 0.45, 9.0])
    (acc, ece, seconds), (nothing, same, _), (worse, better, _) = views.cells(table)
    assert (acc.value, acc.spread, acc.printed, acc.difference, acc.tone) == ("91.5", "0.7", "90.0", "+1.5", "better")
    assert (ece.difference, ece.tone, ece.mark, ece.place) == ("+0.20", "worse", True, None)
    assert (seconds.difference, seconds.tone) == ("+1.0", "plain")
    assert (nothing.value, nothing.printed, nothing.difference, nothing.order) == ("–", "90.0", "", None)
    assert (same.difference, same.tone, same.strength) == ("0.00", "same", 0.0)
    assert (worse.difference, worse.tone, worse.strength, worse.place) == ("−20.0", "worse", 1.0, 1)
    assert acc.strength == pytest.approx(1.5 / 20, abs=0.006)
    assert (better.difference, better.tone, better.strength) == ("−0.15", "better", 0.75)  # of 20 steps, not of 0.2


def test_daggers_are_explained():
    table = Table("m", [Column("acc")])
    table.add("a", [[1.0], [2.0]], marked=[0])
    assert [note[:3] for note in views.footnotes(table)] == ["† T", "± i"]
    table.footnote = "† Mine."
    assert views.footnotes(table) == ["† Mine.", "± is the standard deviation over 2 seeds."]


def test_the_numbers_of_a_bundle_are_its_mean_and_edges():
    xs = [float(i) for i in range(100)]
    bundle = [Line("", xs, [k * x for x in xs]) for k in range(20)]
    panel = Lines("t", "x", "y", [*bundle, Line("own", [0.0, 3.0], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5])])
    assert views.bundle(panel) == bundle
    (numbers,) = views.numbers(Figure("f", "", "", [panel]))
    assert numbers.head == ["x", "own", "mean of 20", "lowest of 20", "highest of 20"]
    assert numbers.rows[:2] == [["0", "1 (0.5 to 1.5)", "0", "0", "0"], ["3", "2 (1.5 to 2.5)", "28.5", "0", "57"]]
    assert len(numbers.rows) == 34
    assert numbers.note.startswith("One row in 3 of 100")


def test_figures_keep_what_is_no_number():
    figure = example()[3].figures[0]
    again = Figure.from_json(json.loads(json.dumps(figure.to_json(), allow_nan=False)))
    assert str(again) == str(figure).replace("()", "[]")  # by their text, since nan is not nan
    assert [row[1] for row in views.numbers(again)[0].rows] == ["1", "–", "3"]


def test_claims_of_one_unit_share_a_scale():
    claims = [JudgedClaim(**claim) for claim in CLAIMS]
    first, _, third = (spans(claim, claims) for claim in claims[:3])
    assert first["zero"] == third["zero"] == pytest.approx(4 + 92 * 4.6 / (4.6 + 3.05), abs=0.05)
    assert third["low"] == 4
    assert first["high"] == 96
    assert spans(claims[3], claims)["zero"] == 4
