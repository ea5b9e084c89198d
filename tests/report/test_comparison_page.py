"""The page of a comparison: figures, charts with data, GPUs with merges, and why things happened."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from example_runs import NASTY_JOB, NASTY_TRACE, ORIGIN, comparison, result
from page_console import console

from ymir_opt.report import comparison_page
from ymir_opt.report.run_data import comparison_data
from ymir_opt.simulator.metrics import metrics_row
from ymir_opt.simulator.results import SimulationResult

CHARTS = ("cdf", "bound", "queue", "utilisation", "fairness", "fragmentation", "gpus")


def test_traces_policies_and_seeds_are_grouped() -> None:
    data = comparison_data(*comparison())
    assert [trace["trace"] for trace in data] == [NASTY_TRACE, "other.swf"]
    assert [[run["policy"] for run in trace["runs"]] for trace in data] == [
        ["tiresias", "ymir", "<i>odd</i>"]
    ] * 2
    assert [trace["seeds"] for trace in data] == [6, 1]
    assert data[0]["bound"] == {
        "fastest": 400.0,
        "shortest_first": 300.0,
        "slot_prices": 450.0,
        "mean": 450.0,
    }
    first, second = data[0]["runs"][1], data[1]["runs"][1]
    low, high = first["mean_interval"]
    assert low < first["row"]["mean_jct_s"] < high
    assert second["mean_interval"] is None
    assert second["ratio_interval"] is None
    # the bound is the same for every seed here, so both intervals tell the same
    assert np.array(first["ratio_interval"]) == pytest.approx(np.array([low, high]) / 450.0)
    assert second["cdf"]["low"] is None
    share, lower, upper = (np.asarray(first["cdf"][name]) for name in ("share", "low", "high"))
    assert share[0] > 0.0
    assert share[-1] == 1.0
    for curve in (share, lower, upper):
        assert (np.diff(curve) >= 0).all()
    assert (lower <= share).all()
    assert (share <= upper).all()


def test_times_count_from_the_first_submission() -> None:
    run = comparison_data(*comparison())[0]["runs"][0]
    gpus = run["gpus"]
    assert [segment[3] for segment in gpus["segments"]] == [0.0, 600.0, 1500.0, 1500.0, 1600.0]
    assert gpus["jobs"][0][:4] == ["a", 0.0, 0.0, 600.0]
    assert list(gpus["rounds"]["time_s"]) == [0.0, 600.0, 1500.0, 1600.0]
    assert run["over"]["queue"]["t"][0] == 0.0
    assert ORIGIN > 1e9


def test_pieces_are_runs_of_neighbouring_gpus_on_nodes_in_their_natural_order() -> None:
    gpus = comparison_data(*comparison())[0]["runs"][0]["gpus"]
    assert gpus["nodes"] == [["n2", 4], ["n10", 4]]
    assert [segment[7] for segment in gpus["segments"]] == [
        [[0, 0, 2]],
        [[0, 0, 2], [0, 3, 1]],
        [[0, 0, 2], [0, 3, 1]],
        [[0, 2, 1]],
        [[1, 0, 4]],
    ]
    assert gpus["dropped"] == 0


def test_only_the_longest_stretches_are_drawn_where_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ymir_opt.report.run_data.MAX_SEGMENTS", 2)
    gpus = comparison_data(*comparison())[0]["runs"][0]["gpus"]
    assert gpus["dropped"] == 3
    # 900 s, and 900 s with the late end: the two longest, in the order of their begin
    assert [segment[0] for segment in gpus["segments"]] == [2, 3]


def test_without_segments_or_jobs_the_page_still_says_what_it_knows() -> None:
    bare = result("t", "fifo", 0)
    bare.segments = []
    empty = SimulationResult("t", "never", 0, 8, unfinished=("x",))
    rows = [metrics_row(bare), metrics_row(empty)]
    text = comparison_page(rows, [bare, empty], [None, None])
    assert "Jobs that never finished and are in no figure: never 1." in text
    assert "fifo has the least mean completion time" in text
    assert "There are no runs." in comparison_page([], [], [])


def test_names_are_text_everywhere() -> None:
    text = comparison_page(*comparison())
    assert NASTY_TRACE not in text
    assert NASTY_JOB not in text
    assert "<i>odd</i>" not in text
    assert "<img" not in re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert text.count("<script>") == 3
    policy = re.search(r'content="(default-src[^"]*)"', text)
    assert policy is not None
    assert "default-src &#x27;none&#x27;" in policy[1]
    assert "http" not in policy[1]


def test_figures_are_in_the_table() -> None:
    rows, results, bounds = comparison()
    text = comparison_page(rows, results, bounds)
    # (600 + 1200 + 1600 + 800) / 4 = 1050 s; the others are late by 500 s on one of four jobs
    assert next(r["mean_jct_s"] for r in rows if r["policy"] == "ymir") == 1050.0
    assert "ymir has the least mean completion time, 0.292 h, 10.6 % below tiresias." in text
    assert "No schedule without merging can be below 0.125 h; this is 133 % above." in text
    assert text.count("2.33 ×") == 2


@pytest.mark.browser
def test_in_a_browser_every_chart_has_data(opened: Callable[[str], Any]) -> None:
    driver = opened(comparison_page(*comparison()))
    assert driver.execute_script("return document.documentElement.dataset.ready") == "yes"
    points = driver.execute_script(
        "return arguments[0].map((id) => document.getElementById(id).data"
        ".reduce((n, t) => n + ((t.x || t.q1 || []).length), 0))",
        list(CHARTS),
    )
    assert min(points) > 0, dict(zip(CHARTS, points, strict=True))
    drawn = driver.execute_script(
        "return arguments[0].map((id) => document.querySelectorAll(`#${id} path`).length)", list(CHARTS)
    )
    assert min(drawn) > 0, dict(zip(CHARTS, drawn, strict=True))
    assert driver.execute_script("return document.querySelectorAll('img, #x, i:not(.dot)').length") == 0
    # on logarithmic axes the labels are the numbers, not digits of a decade
    labels = driver.execute_script(
        "return [...document.querySelectorAll('#cdf .xtick text')].map((t) => t.textContent)"
    )
    assert "0.2" in labels
    # three policies, each with its band
    assert driver.execute_script("return document.getElementById('cdf').data.length") == 6
    shapes = driver.execute_script("return document.getElementById('gpus').data[0].marker.pattern.shape")
    assert sorted(shapes) == ["", "", "", "/", "/", "/", "/"]
    assert driver.find_element("css selector", "#policy").get_attribute("value") == "ymir"

    driver.find_element("css selector", '.tab[data-trace="1"]').click()
    visible = [s.is_displayed() for s in driver.find_elements("css selector", "section.trace")]
    assert visible == [False, True]
    assert driver.execute_script("return document.getElementById('cdf').data.length") == 3
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    colour = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert max(int(c) for c in re.findall(r"\d+", colour)) < 60
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert console(driver) == []


@pytest.mark.browser
def test_a_click_on_a_stretch_says_why(opened: Callable[[str], Any]) -> None:
    driver = opened(comparison_page(*comparison()))
    side = driver.find_element("css selector", "#why")

    def told(index: int) -> str:
        driver.execute_script(
            "document.getElementById('gpus').emit('plotly_click', {points: [{customdata: arguments[0]}]})",
            index,
        )
        return str(side.text)

    solo = told(0)
    for said in (
        "Group 1, solo",
        "2 GPUs (n2: 0–1)",
        "Its GPUs had not been used before.",
        "30 s of it for the start",
        "Ended because the work was done.",
        f"Its GPUs went on to b, {NASTY_JOB} (joint, 3 GPUs)",
    ):
        assert said in solo
    merged = told(1)
    for said in (
        "Group 2, joint",
        f"Planned after a finished and b, {NASTY_JOB} arrived.",
        "After this plan 0 jobs waited",
        "value gap was 0.10 %",
        "Took over GPUs of a (finished at that moment).",
        "A member finished",
        f"The plan's reason: b: starts on 3 V100 in joint with {NASTY_JOB} (Chosen).",
        f"The plan's reason: {NASTY_JOB}: goes along <script>.",
        f"Job {NASTY_JOB}",
        "5 min of waiting since its submission, first start",
    ):
        assert said in merged
    rest = told(2)
    for said in (
        "Goes on after a member left",
        "Stopped by the next plan.",
        "The plan's reason: changes to 4 V100.",
        "Went on at once on 4 GPUs (solo).",
    ):
        assert said in rest
    moved = told(4)
    assert "Resized from 3 to 4 GPUs (joint until then)." in moved
    assert "preempted 1 times in all" in moved
    assert "1 GPUs requested" in told(3)
    assert driver.title == "Comparison of policies"
    assert console(driver) == []


@pytest.mark.browser
def test_a_real_click_reaches_the_stretch(opened: Callable[[str], Any]) -> None:
    from selenium.webdriver import ActionChains

    driver = opened(comparison_page(*comparison()))
    chart = driver.find_element("css selector", "#gpus")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    bar = driver.find_elements("css selector", "#gpus .barlayer .trace")[0].find_elements(
        "css selector", ".point path"
    )
    ActionChains(driver).move_to_element(bar[0]).pause(0.3).click().perform()
    assert "Group 1, solo" in driver.find_element("css selector", "#why").text
