"""What enters a page stays text, and a page allows nothing from outside."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ymir_opt.report.html import Html, clean, data_block, el, join, page, script_hash


class Reader(HTMLParser):
    """Collects elements, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text())
def test_text_and_attributes_come_back_as_they_were_given(text: str) -> None:
    read = Reader(el("p", text, title=text))
    assert read.tags == ["p"]
    assert read.text == clean(text)
    assert read.attributes == [("title", clean(text))]


@given(
    st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_data_blocks_hold_any_text_and_never_end_early(value: object) -> None:
    block = data_block("d", {"value": value})
    read = Reader(block)
    assert read.tags == ["script"]
    inner = block[block.index(">") + 1 : block.rindex("</script>")]
    assert not re.search(r"[<>&\u2028\u2029]", inner)
    assert json.loads(inner).keys() == {"value"}


def test_figures_that_json_does_not_know_become_null() -> None:
    block = data_block("d", [math.nan, math.inf, 1.5, {"x": (-math.inf,)}])
    assert '[null,null,1.5,{"x":[null]}]' in block


def test_markup_passes_once_and_strings_never() -> None:
    inner = el("b", "<i>")
    assert el("p", inner, "<i>", [1, None, inner]) == ("<p><b>&lt;i&gt;</b>&lt;i&gt;1<b>&lt;i&gt;</b></p>")
    assert join(["<", Html("<br>")]) == "&lt;<br>"


def test_attributes_may_be_bare_or_left_out() -> None:
    assert el("input", hidden=True, disabled=False, data_x=None, class_="a", aria_label='"') == (
        '<input hidden class="a" aria-label="&quot;">'
    )


def test_control_and_reordering_characters_are_made_visible() -> None:
    assert clean("a\x00b\x1bc\u202edcb") == "a\ufffdb\ufffdc[U+202E]dcb"
    assert clean("Größe 模型 \U0001f600\n") == "Größe 模型 \U0001f600\n"
    assert clean("x\ud800") == "x\ufffd"


def test_a_page_allows_only_its_own_scripts_and_styles() -> None:
    text = page("<t>", el("p", "x"), styles=("p{color:red}",), scripts=("var a = 1;",), data={"d": [1]})
    read = Reader(text)
    policy = dict(read.attributes)["content"] and next(
        value for key, value in read.attributes if key == "content" and value and "default-src" in value
    )
    assert "default-src 'none'" in policy
    assert f"script-src {script_hash('var a = 1;')}" in policy
    assert f"style-src {script_hash('p{color:red}')}" in policy
    assert "unsafe" not in policy
    assert "<title>&lt;t&gt;</title>" in text


def test_a_script_that_would_end_its_own_element_is_refused() -> None:
    with pytest.raises(ValueError, match="end tag"):
        page("t", "", scripts=("a = '</SCRIPT>'",))
