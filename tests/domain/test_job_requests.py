"""Requests: what is taken, what is refused and in which words, and that ids stay out of paths."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ymir_opt.domain.errors import InputError
from ymir_opt.domain.request import key_of, parse_request, parse_submitted
from ymir_opt.domain.yaml_text import load_yaml

EXAMPLE = """\
schema: ymir.job/1
name: sst2-a
queue: nlp
model: {name_or_path: roberta-base, revision: null, dtype: bfloat16}
data: {path: data/sst2, train_split: train, eval_split: validation, text_column: sentence,
       label_column: label}
peft: {peft_type: LORA, r: 8, lora_alpha: 16, lora_dropout: 0.05, target_modules: [query, value]}
training: {learning_rate: 2.0e-4, global_batch_size: 64, optim: adamw_torch, max_length: 128,
           num_train_epochs: 10, seed: 0}
target: {metric: eval_accuracy, value: 0.92, greater_is_better: true}
resources: {min_gpus: 1, max_gpus: 4, gpu_types: [A100], time_limit_s: 14400}
sharing: tenant
parallelism: data
priority: 0
"""
SHORT = """\
schema: ymir.job/1
name: a
model: {name_or_path: minilm}
data: {path: d.csv}
training: {learning_rate: 1e-3, global_batch_size: 8}
"""


def test_the_documented_request() -> None:
    request = parse_request(EXAMPLE.encode())
    assert (request.name, request.queue, request.task_name) == ("sst2-a", "nlp", "sst2")
    assert request.training.learning_rate == 2e-4
    assert request.peft.target_modules == ("query", "value")
    assert request.target is not None
    assert request.target.value == 0.92
    assert request.model.label == "roberta-base-bfloat16"
    assert request.config == "bfloat16-len128-r8"


def test_numbers_and_words_of_yaml_1_2() -> None:
    # YAML 1.1 would read 1e-3 as a text and `no` as false
    request = parse_request((SHORT + "task: no\n").encode())
    assert (request.training.learning_rate, request.task) == (1e-3, "no")


def test_a_model_cut_or_at_a_revision_is_another_model() -> None:
    labels = [
        parse_request(SHORT.replace("minilm", text).encode()).model.label
        for text in (
            "minilm",
            "minilm, layers: 2",
            "minilm, revision: v1",
            "/m/a",
            "/n/a",
            "minilm, dtype: float16",
        )
    ]
    assert labels[:3] == ["all-MiniLM-L6-v2", "all-MiniLM-L6-v2-first2", "all-MiniLM-L6-v2@v1"]
    assert len(set(labels)) == 6


BOMB = "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB + SHORT, r"request:1: uses an anchor or alias; write the value out"),
        (SHORT + "task: *x\n", r"request:6: uses an anchor or alias"),
        (SHORT + "task: !!python/object/apply:os.system [ls]\n", r"request:6: uses the tag"),
        (SHORT + "x: " + "[" * 50 + "]" * 50, r"nested deeper than 8 levels"),
        (SHORT + "x: [" + "1," * 5000 + "]", r"more than 4000 values"),
        (SHORT + "#" + "x" * 70000, r"bytes are more than 65536"),
        (SHORT + "name: b\n", r"request:6: is not valid YAML: the key 'name' is given twice"),
        (SHORT + "1: b\n", r"the key '1' is not a text"),
        (SHORT + "---\nx: 1\n", r"a second document begins"),
        ("- a\n", r"is not a mapping"),
        ("", r"is not a mapping"),
        ("a: [", r"is not valid YAML"),
        (SHORT.replace("ymir.job/1", "ymir.job/2"), r"is of schema 'ymir.job/2'; begin with"),
        (SHORT.replace("schema: ymir.job/1\n", ""), r"has no schema"),
        (SHORT + "prioritty: 1\n", r"unknown field 'prioritty'; did you mean 'priority'"),
        (SHORT.replace("learning_rate", "learning_rat"), r"unknown field|'learning_rate' is missing"),
        (SHORT.replace("1e-3", "fast"), r"training.learning_rate: 'fast'"),
        (SHORT.replace("1e-3", ".nan"), r"training.learning_rate"),
        (SHORT.replace("1e-3", "-1"), r"training.learning_rate: -1"),
        (SHORT + "peft: {peft_type: LOAR}\n", r"'LOAR': is not a known peft_type; did you mean 'LORA'"),
        (SHORT.replace("name: a", "name: ../../x"), r"name: '../../x': contains a '..' path component"),
        (SHORT.replace("name: a", 'name: "a\\nb"'), r"control character"),
        (SHORT.replace("d.csv", '"d\\u0000.csv"'), r"data.path.*control character|special characters"),
        (SHORT + "resources: {min_gpus: 2}\n", r"resources.min_gpus: 2 is more than the one device"),
        (SHORT + "parallelism: pipeline\n", r"parallelism: 'pipeline' is not run"),
    ],
)
def test_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_request(text.encode())
    line = caught.value.one_line()
    assert line.isprintable()
    assert len(line) < 400


def test_a_bomb_is_refused_before_it_grows() -> None:
    levels = "".join(f"l{i}: &l{i} [{','.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 30))
    with pytest.raises(InputError, match="anchor or alias"):
        load_yaml(("l0: &l0 [x]\n" + levels).encode(), "bomb")


@pytest.mark.parametrize(
    "job", ["../../x", ";rm -rf /", "$(reboot)", "a/b", "-rf", "..", "é" * 300, "\x00", "CON"]
)
def test_an_id_never_becomes_a_path_or_a_shell_word(job: str) -> None:
    key = key_of(job)
    assert re.fullmatch(r"[a-z0-9_][a-z0-9_-]*-[0-9a-f]{10}", key)
    assert Path("/jobs", key).resolve().parent == Path("/jobs").resolve()


@given(st.text(max_size=40), st.text(max_size=40))
@settings(max_examples=200, deadline=None)
def test_ids_and_keys_are_one_to_one(first: str, second: str) -> None:
    assert (key_of(first) == key_of(second)) == (first == second)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    with pytest.raises(InputError):
        parse_request(data)


def test_what_is_kept_of_a_request_comes_back() -> None:
    fields = json.loads(parse_request(EXAMPLE.encode()).model_dump_json(by_alias=True))
    kept = {**fields, "id": "sst2-a", "tenant": "ann \U0001f600", "submitted_at_s": 12.5}
    job = parse_submitted(json.dumps(kept).encode())
    assert (job.id, job.tenant, job.submitted_at_s) == ("sst2-a", "ann \U0001f600", 12.5)
    with pytest.raises(InputError, match="'tenant' is missing"):
        parse_submitted(json.dumps({k: v for k, v in kept.items() if k != "tenant"}).encode())
    for wrong in (b"{", b"[]"):
        with pytest.raises(InputError, match="submit the job again"):
            parse_submitted(wrong)
