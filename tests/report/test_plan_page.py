"""The page of one plan: everything on it, nothing wrong on it, nothing from outside."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from example_plan import NASTY, example, of_size
from page_console import console

from ymir_opt.domain.documents import snapshot_sha256
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.plan import Plan, PlannerInfo, SolverInfo, SolverStatus, StoppedBy
from ymir_opt.domain.snapshot import Snapshot
from ymir_opt.report import plan_page


def cells(text: str) -> Counter[int]:
    """Return the GPUs on the map by group number."""
    return Counter(int(n) for n in re.findall(r'<a class="gpu held [^>]*data-g="(\d+)"', text))


def test_every_gpu_job_reason_and_alternative_is_shown() -> None:
    snapshot, plan = example()
    text = plan_page(snapshot, plan)
    assert cells(text) == {n: group.gpus for n, group in enumerate(plan.groups, 1)}
    for job in snapshot.jobs:
        shown = job.id.replace("&", "&amp;")
        assert f">{shown}</span>" in text
    for explanation in plan.explanations.values():
        assert explanation.reason.value in text
    alternatives = sum(len(e.alternatives) for e in plan.explanations.values())
    assert text.count("loss in objective") == len(plan.explanations)
    assert text.count("transfer of rte to sst2") * 3 == alternatives
    assert "≥ +0.2" in text
    assert "+0.0123" in text
    assert text.count('class="gpu profile"') == 1 + 1  # one GPU and the legend
    assert text.count('class="gpu out"') == 1 + 4 + 1
    assert "27 of 31 GPUs in use" in text


def test_texts_of_users_stay_text() -> None:
    snapshot, plan = example()
    text = plan_page(snapshot, plan)
    assert NASTY not in text
    assert "<img" not in text
    assert text.count("<script>") == 1
    assert text.count("</script>") == 1
    assert "http" not in re.sub(r'http-equiv="', "", text)


@pytest.mark.parametrize("what", ["job", "node", "gpu", "action"])
def test_a_plan_of_another_snapshot_is_refused(what: str) -> None:
    snapshot, plan = example()
    if what in ("job", "action"):
        place = plan.groups[0].jobs[0] if what == "job" else "job-17"
        snapshot = snapshot.model_copy(update={"jobs": tuple(j for j in snapshot.jobs if j.id != place)})
    else:
        nodes = snapshot.cluster.nodes[1:]
        if what == "gpu":
            nodes = (snapshot.cluster.nodes[0].model_copy(update={"gpus": 2}), *nodes)
        cluster = snapshot.cluster.model_copy(update={"nodes": nodes})
        snapshot = snapshot.model_copy(update={"cluster": cluster})
    with pytest.raises(InputError, match="another snapshot"):
        plan_page(snapshot, plan)
    with pytest.raises(InputError, match="not in the snapshot"):
        plan_page(snapshot, plan.model_copy(update={"snapshot_sha256": snapshot_sha256(snapshot)}))


def test_an_empty_cluster_and_an_unknown_gap_are_said() -> None:
    snapshot = Snapshot(taken_at_s=0.0)
    plan = Plan(
        snapshot_sha256=snapshot_sha256(snapshot),
        planner=PlannerInfo(version="1", policy="fifo"),
        solver=SolverInfo(backend="none", status=SolverStatus.FEASIBLE, stopped_by=StoppedBy.POLICY),
    )
    text = plan_page(snapshot, plan)
    for said in ("has no nodes", "No job gets a GPU", "No job waits", "states no objective", "not stated"):
        assert said in text


@pytest.mark.browser
def test_in_a_browser_groups_open_reasons_filter_and_search_finds(opened: Callable[[str], Any]) -> None:
    driver = opened(plan_page(*example()))
    find = lambda css: driver.find_elements("css selector", css)  # noqa: E731
    assert driver.title == "Plan of ymir"
    assert driver.execute_script("return document.documentElement.dataset.ready") == "yes"

    find('.map .gpu[data-g="2"]')[1].click()
    panel = find("#panel")[0]
    assert "job-01" in panel.text
    assert "Chosen" in panel.text
    assert NASTY.split("<")[0] in panel.text
    assert len(find(".map .gpu.sel")) == 2
    driver.find_element("css selector", "#panel .close").click()
    assert not find(".map .gpu.sel")

    waiting = find(".item[data-reason]")
    assert len(waiting) == 4
    find('.chip[data-reason="ExceedsMaxQuota"]')[0].click()
    assert [item.text.split()[0] for item in waiting if item.is_displayed()] == ["job-17"]
    find('.chip[data-reason="ExceedsMaxQuota"]')[0].click()
    waiting[-1].find_element("css selector", "summary").click()
    assert "loss in objective" in waiting[-1].text
    assert NASTY in waiting[-1].get_property("textContent")

    box = find("#search")[0]
    box.send_keys("job-13 a100")
    assert [i.get_attribute("id") for i in find(".item") if i.is_displayed() and i.get_attribute("id")] == [
        "g10"
    ]
    colours = {
        cell.value_of_css_property("background-color")
        for cell in find(".map .gpu.held")
        if cell.is_displayed()
    }
    assert len(colours) == 10
    assert not find("img")
    assert console(driver) == []


@pytest.mark.browser
def test_a_plan_of_a_thousand_gpus_opens(opened: Callable[[str], Any]) -> None:
    driver = opened(plan_page(*of_size(128, 600)))
    assert len(driver.find_elements("css selector", ".map.compact .gpu.held")) == 1024
    assert driver.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
