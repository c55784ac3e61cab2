"""The page: well-formed, self-contained, and safe whatever the kernels say."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from made_up_runs import MODEL, packs, run, typical, verdict
from made_up_runs import write as write_run

from jaxbench_env import Status
from jaxbench_env.report import summarise, verdict_page, write
from jaxbench_env.report.page import report_page

HOSTILE = (
    "</script><script>alert(1)</script>\n<!-- <img src=x onerror=alert(2)>\n"
    'x = "\u2028 \ud800 \x00 &lt; ${`"\n'
)
VOID = {"meta", "input", "br", "img", "link", "line"}


class Checked(HTMLParser):
    """Fails where tags do not match; keeps what was found."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.text.append(data)


def parsed(page):
    reader = Checked()
    reader.feed(page.decode())
    reader.close()
    assert not reader.open
    return reader


@pytest.fixture
def runs(tmp_path):
    names = ("gemm", "rms_norm")
    return [
        run(typical(tmp_path / policy, names, 8, skill, policy=policy))
        for policy, skill in (("iterative", 0.3), ("autocomp", 0.8))
    ]


def test_a_report_is_one_well_formed_file_without_anything_from_outside(runs):
    page = report_page(summarise(runs), runs)
    reader = parsed(page)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {*reader.tags}
    addresses = [value for _, name, value in reader.attributes if name in ("src", "href")]
    assert addresses and all(address.startswith("#/") for address in addresses)
    style = (page.split(b"<style>")[1]).split(b"</style>")[0]
    assert b"url(" not in style and b"@import" not in style
    assert b"default-src 'none'" in page
    ids = re.findall(rb'\bid="(\w+)"', page)
    assert len(ids) == len({*ids})


def test_links_of_the_tables_lead_to_the_best(runs):
    index, data = packs(report_page(summarise(runs), runs))
    page = report_page(summarise(runs), runs).decode()
    links = re.findall(r'href="#/(\w+)/(\d+)/(\d+)">([\d.]+)<', page)
    assert len(links) == 4
    for name, number, sample, text in links:
        best = runs[int(number)].best(name)
        assert best.sample.sample == int(sample) and f"{best.speedup:.2f}" == text
        pack = next(w["pack"] for w in index["workloads"] if w["id"] == name)
        assert f"{number}/{sample}" in data[pack]["samples"]


def test_the_packs_hold_every_kernel_once_and_every_verdict(runs):
    index, data = packs(report_page(summarise(runs), runs))
    for workload in index["workloads"]:
        pack = data[workload["pack"]]
        assert len(workload["samples"]) == len(pack["samples"]) == 16
        hashes = {line[5] for line in workload["samples"]}
        assert hashes == pack["sources"].keys()
        parents = {line[6] for line in workload["samples"]} - {None}
        assert parents and parents <= hashes
        for detail in pack["samples"].values():
            assert detail["feedback"].startswith("Status: ") and detail["plan"]
            assert detail["result"]["provenance"]["workload"] == workload["id"]


def test_hostile_texts_stay_inside_the_packs(tmp_path):
    result = verdict(
        Status.COMPILE_ERROR, None, "gemm", HOSTILE, message=HOSTILE, details=HOSTILE, line=2
    )
    sample = ("gemm", 0, HOSTILE, result, {"plan": HOSTILE, "place": {"<b>": HOSTILE}})
    proposer = {**MODEL, "model": "</title><script>alert(3)</script>"}
    one = run(write_run(tmp_path / "x", [sample], proposer=proposer))
    for page in (report_page(summarise([one]), [one]), verdict_page("gemm", HOSTILE, result)):
        reader = parsed(page)
        kinds = [1 for tag, name, _ in reader.attributes if (tag, name) == ("script", "type")]
        assert reader.tags.count("script") == len(kinds) + 1  # the page's own
        assert b"alert(" not in page.replace(b"&lt;/title&gt;&lt;script&gt;alert(3)", b"")
        index, data = packs(page)
        assert list(data["pack0"]["sources"].values()) == [HOSTILE]
        assert "alert(1)" in data["pack0"]["samples"]["0/0"]["feedback"]


def test_what_javascript_cannot_read_is_spelled_out():
    result = verdict(Status.OK, 2.0, "gemm", "x", counters={"mxu_share": float("nan")})
    _, data = packs(verdict_page("gemm", "x", result))
    assert data["pack0"]["samples"]["0/0"]["result"]["counters"] == {"mxu_share": "nan"}


def test_the_script_puts_texts_into_the_page_as_text(runs):
    script = report_page(summarise(runs), runs).rpartition(b"<script>")[2].decode()
    for way in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "fetch("):
        assert way not in script
    assert "append(child)" in script


def test_the_same_records_give_the_same_bytes(runs, tmp_path):
    written = []
    for name in ("one", "two"):
        files, _ = write(runs, summarise(runs), tmp_path / "out" / name)
        written.append({f: (tmp_path / "out" / name / f).read_bytes() for f in files})
    assert written[0] == written[1] and {"report.md", "report.html"} <= written[0].keys()


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium")
def test_a_browser_unpacks_the_page_and_marks_the_line(tmp_path):
    text = "a = 1\nb = '</script><script>document.title = 2</script>'\n"
    result = verdict(Status.COMPILE_ERROR, None, "gemm", text, line=2)
    (tmp_path / "page.html").write_bytes(verdict_page("gemm", text, result))
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000"]
    address = (tmp_path / "page.html").as_uri()
    shown = subprocess.run([*command, address], capture_output=True, text=True, timeout=120).stdout
    article = shown[shown.index("<article") : shown.index("</article>")]
    assert "<title>gemm: compile_error</title>" in shown
    assert 'class="row bad"' in article and "<script>" not in article
    assert "b = '&lt;/script&gt;&lt;script&gt;" in article and "Made up: compile_error." in article
