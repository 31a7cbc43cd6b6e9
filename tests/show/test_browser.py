"""Pages in a browser: what must be there is there, nothing complains, controls work, no text lies over another."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.browser import Browser, browser
from support.cli import collc
from support.show_inputs import HOSTILE, THREE_AND_FIVE, cluster, hostile_drawing

from collc.show.page import View, machine_data, page

Pages = Callable[..., Path]
CASE = Path(__file__).parents[1] / "cases" / "merge_channels.ir"

# Machine -> GPUs, links between boxes of its first view of plans, servers to open.
MACHINES = {
    "dgx1v": (8, 32, 0),
    "hgx-h100": (8, 16, 0),
    "gb200-nvl72": (72, 36, 18),
    "mi250": (16, 56, 0),
    "3+5": (8, 32, 0),
}
# Of 16 GPUs in a mesh the flows take longest; a page of two collectives has every element.
ONLY = {"mi250": ("--collective", "all_reduce", "--collective", "broadcast")}
PHONE, DESK, WALL = (390, 844), (1920, 1080), (3840, 2160)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="session")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The page of `collc show` with these words, made once."""
    folder = tmp_path_factory.mktemp("pages")
    known: dict[tuple[str, ...], Path] = {}

    def made(*words: object) -> Path:
        key = tuple(map(str, words))
        if key not in known:
            path = folder / f"{len(known)}.html"
            texts = {"3+5": THREE_AND_FIVE, "128": cluster(128)}
            thing = key[0]
            if thing in texts:
                file = folder / f"machine-{thing}.yaml"
                file.write_text(texts[thing], encoding="utf-8")
                thing = str(file)
            result = collc("show", thing, *key[1:], "-o", path)
            assert result.code == 0, result.err
            known[key] = path
        return known[key]

    return made


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_and_its_plans(chromium: Browser, page_of: Pages, name: str) -> None:
    gpus, lines, folded = MACHINES[name]
    chromium.size(*DESK)
    chromium.open(page_of(name, *ONLY.get(name, ())))
    assert chromium.count("rect.vertex.gpu") == gpus
    assert chromium.count("g.lines path.link") == lines
    assert chromium.count("g.halos path.halo") > 0
    assert chromium.count(".hit") == folded
    assert "GB/s" in chromium.text(".rate")
    assert chromium.overlaps() == []
    for collective in range(int(chromium.js("return document.querySelector('select').options.length"))):
        chromium.choose("Collective", str(collective))
        assert chromium.count("g.lines path.use5") + chromium.count("g.lines path.use4") > 0
        assert chromium.overlaps() == []
    chromium.choose("Collective", "0")
    chromium.choose("Show", "tree 0")
    assert chromium.count("path.arrow") > 0
    assert chromium.count("ol.outline li") == gpus
    assert chromium.count("rect.vertex.root") == 1
    assert chromium.count("g.halos path.halo") == 0
    before = chromium.count("g.lines path.link.chosen")
    chromium.choose("Phase", "reduce")
    assert 0 < chromium.count("g.lines path.link.chosen") < before
    chromium.tab("Machine")
    assert chromium.count("rect.vertex.gpu") == gpus
    assert chromium.overlaps() == []
    if folded:
        opened = chromium.js(
            "const h = document.querySelector('section:not([hidden]) .hit'); h.focus();"
            "h.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'})); return h.dataset.server"
        )
        chromium.settle()
        assert opened in chromium.text("text.server")
        assert chromium.count("rect.vertex.cpu") > 0
        assert chromium.overlaps() == []
    assert chromium.complaints() == []


@pytest.mark.parametrize("size", [PHONE, WALL], ids=["phone", "4K"])
@pytest.mark.parametrize("name", ["dgx1v", "gb200-nvl72", "mi250", "3+5"])
def test_on_a_phone_and_on_a_wall(chromium: Browser, page_of: Pages, name: str, size: tuple[int, int]) -> None:
    chromium.size(*size, phone=size == PHONE, dark=size == WALL)
    chromium.open(page_of(name, *ONLY.get(name, ())))
    for tab in ("Plans", "Machine"):
        chromium.tab(tab)
        assert chromium.overlaps() == []
        # The page is no wider than the screen.
        assert chromium.js("return document.documentElement.scrollWidth <= window.innerWidth")
        assert chromium.js("return document.querySelector('section:not([hidden]) svg').clientHeight") > 150
    assert chromium.complaints() == []


def test_which_links_limit_four_gpus_of_a_dgx1v(chromium: Browser, page_of: Pages) -> None:
    """The answer to a new user's question is in the text, in the picture and in the table."""
    chromium.size(*DESK)
    chromium.open(page_of("dgx1v", "--gpus", "0,1,4,6"))
    assert "all_reduce runs at 25 GB/s" in chromium.text(".rate")
    rows = chromium.js(
        "return [...document.querySelectorAll('section:not([hidden]) tr.limit')].map((r) => r.textContent)"
    )
    names = {re.sub(r"(gpu\d) → (gpu\d).*", r"\1 \2", row) for row in rows}
    assert names == {"gpu0 gpu1", "gpu1 gpu0", "gpu4 gpu6", "gpu6 gpu4"}
    assert all("+1/4" in row for row in rows)
    assert chromium.count("g.halos path.halo") == 4
    assert chromium.count("rect.vertex.gpu.idle") == 4
    # The price of a link, by the pointer and by the keyboard.
    chromium.js("document.querySelector('section:not([hidden]) tr.limit').focus()")
    assert "+1 GB/s here brings 1/4 = 0.25 GB/s" in chromium.js(
        "return document.querySelector('.tip.shown').textContent"
    )
    assert chromium.count("path.link.marked") == 1
    chromium.js("document.activeElement.blur()")
    assert not chromium.js("return document.querySelector('.tip.shown')")
    chromium.js(
        "const l = document.querySelector('section:not([hidden]) path.link.use5');"
        "l.dispatchEvent(new PointerEvent('pointermove', {clientX: 50, clientY: 50, bubbles: true}))"
    )
    assert "limits the rate" in chromium.js("return document.querySelector('.tip.shown').textContent")
    assert chromium.complaints() == []


def test_a_cluster_opens_folded_and_servers_open(chromium: Browser, page_of: Pages) -> None:
    chromium.size(*DESK)
    chromium.open(page_of("128"))
    assert chromium.count(".hit") == 128
    assert chromium.count("rect.pip") == 1024
    assert chromium.overlaps() == []
    chromium.js(
        "document.querySelector('.hit[data-server=server77]').dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    )
    chromium.settle()
    assert chromium.text("text.server") == "server77"
    assert chromium.count("rect.vertex.gpu") == 8
    assert chromium.count("rect.vertex.bar") == 8
    assert chromium.overlaps() == []
    chromium.js("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    chromium.settle()
    assert chromium.count(".hit") == 128
    assert chromium.complaints() == []


def test_names_with_markup_stay_text(chromium: Browser, tmp_path: Path) -> None:
    drawing = hostile_drawing()
    file = tmp_path / "hostile.html"
    file.write_text(page(HOSTILE, [View("machine", HOSTILE, machine_data(drawing))]), encoding="utf-8")
    chromium.open(file)
    assert chromium.js("return document.querySelectorAll('img').length") == 0
    assert chromium.js("return document.querySelector('h1').textContent") == HOSTILE
    assert chromium.count("rect.vertex.gpu") == 8
    assert chromium.complaints() == []


def test_the_policy_stops_a_script_that_got_in(chromium: Browser, page_of: Pages, tmp_path: Path) -> None:
    """If a name became markup, nothing would run, and the console would report it."""
    file = tmp_path / "broken.html"
    text = page_of("dgx1v", "--gpus", "0,1,4,6").read_text(encoding="utf-8")
    file.write_text(
        text.replace("<body>", "<body><script>window.broken = 1</script><img src=x onerror='window.broken = 1'>")
    )
    chromium.open(file)
    assert chromium.js("return window.broken") is None
    assert any("Content Security Policy" in line for line in chromium.complaints())


def test_zoom_and_keys(chromium: Browser, page_of: Pages) -> None:
    chromium.size(*DESK)
    chromium.open(page_of("dgx1v"))
    svg = "document.querySelector('section:not([hidden]) svg.picture')"
    scale = f"return {svg}.firstElementChild.transform.baseVal.consolidate().matrix.a"
    at_home = chromium.js(scale)
    press = f"{svg}.dispatchEvent(new KeyboardEvent('keydown', {{key: arguments[0]}}))"
    chromium.js(press, "+")
    assert chromium.js(scale) > at_home
    chromium.js(press, "0")
    assert chromium.js(scale) == pytest.approx(at_home)
    # The check for texts that cover each other sees one that is moved over another.
    assert chromium.overlaps() == []
    chromium.js(
        f"const [a, b] = {svg}.querySelectorAll('text.name'); for (const n of 'xy')"
        " a.setAttribute(n, b.getAttribute(n))"
    )
    assert len(chromium.overlaps()) == 1
    chromium.js("document.querySelector('header button').click(); document.querySelector('header button').click()")
    assert chromium.js("return getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 25)"
    assert chromium.complaints() == []


def test_steps_over_time(chromium: Browser, page_of: Pages) -> None:
    chromium.size(*DESK)
    chromium.open(page_of("dgx1v", "--gpus", "0,1,4,6", "--collective", "all_reduce", "--time", "1M"))
    chromium.tab("Time: all_reduce, 1 MiB")
    painted = "return document.querySelector('section:not([hidden]) canvas').toDataURL().length"
    assert chromium.js(painted) > 5_000
    assert chromium.count(".chart .tick") > 4
    assert chromium.overlaps() == []
    last = "return [...document.querySelectorAll('section:not([hidden]) .chart .tick')].at(-1).textContent"
    whole = chromium.js(last)
    chromium.js(
        "document.querySelector('section:not([hidden]) canvas').dispatchEvent(new KeyboardEvent('keydown', {key: '+'}))"
    )
    assert chromium.js(last) != whole
    chromium.js(
        "document.querySelector('section:not([hidden]) canvas').dispatchEvent(new KeyboardEvent('keydown', {key: '0'}))"
    )
    assert chromium.js(last) == whole
    for lanes in ("ranks", "pairs", "links"):
        chromium.choose("Lanes", lanes)
        assert chromium.js(painted) > 3_000
    # The pointer over some step tells what it is.
    told = chromium.js(
        "const c = document.querySelector('section:not([hidden]) canvas'); const b = c.getBoundingClientRect();"
        "for (let x = 140; x < b.width; x += 6) for (let y = 30; y < b.height; y += 4) {"
        "  c.dispatchEvent(new PointerEvent('pointermove', {clientX: b.left + x, clientY: b.top + y}));"
        "  const t = document.querySelector('.tip.shown'); if (t) return t.textContent; } return ''"
    )
    assert "chunk" in told
    assert "over gpu" in told
    assert chromium.complaints() == []


def test_results_and_programs(chromium: Browser, tmp_path: Path) -> None:
    run = collc("simulate", "dgx1v", "-b", "64K", "-e", "4M", "-f", "8", "--compare", "nccl", "--json").out
    (tmp_path / "run.json").write_text(run, encoding="utf-8")
    results, passes = tmp_path / "run.html", tmp_path / "passes.html"
    assert collc("show", tmp_path / "run.json", "-o", results).code == 0
    texts = CASE.read_text(encoding="utf-8").split("# ----\n")
    for name, text in zip(("before", "after"), texts, strict=True):
        (tmp_path / f"{name}.ir").write_text(text, encoding="utf-8")
    assert collc("show", tmp_path / "before.ir", "--compare", tmp_path / "after.ir", "-o", passes).code == 0
    for size in (PHONE, DESK):
        chromium.size(*size, phone=size == PHONE)
        chromium.open(results)
        assert chromium.count(".plot svg") == 2
        assert chromium.count(".plot path.curve") >= 3
        assert "KiB" in chromium.text(".plot svg")
        assert "MiB" in chromium.text(".plot svg")
        assert chromium.overlaps() == []
        assert chromium.js("return document.documentElement.scrollWidth <= window.innerWidth")
        chromium.open(passes)
        assert chromium.count("table.diff tr.change") + chromium.count("table.diff tr.add") > 0
        assert chromium.js("return document.documentElement.scrollWidth <= window.innerWidth")
    assert chromium.complaints() == []


def test_hostile_results_stay_text(chromium: Browser, tmp_path: Path) -> None:
    row = {"collective": HOSTILE, "bytes": 8, "time_us": 1.0, "algbw_gbps": 1.0, "busbw_gbps": 1.0, "plan": HOSTILE}
    (tmp_path / "rows.json").write_text(json.dumps({"rows": [row, {**row, "bytes": 16}]}), encoding="utf-8")
    assert collc("show", tmp_path / "rows.json", "-o", tmp_path / "rows.html").code == 0
    chromium.open(tmp_path / "rows.html")
    assert chromium.js("return document.querySelectorAll('img').length") == 0
    assert HOSTILE in chromium.text("tbody")
    assert chromium.complaints() == []
