"""The request: what a user asks for, schema ``ymir.job/1``, in the words of PEFT and transformers.

A request is YAML (or JSON, which is YAML). Its ``name`` is the job's id. An id never becomes a path or a
word of a shell: only its key does, a slug and a hash (`key_of`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from ymir_opt.domain.base import (
    Id,
    Model,
    NonNegative,
    Positive,
    PositiveCount,
    Real,
    Text,
    first_error,
    nearest,
    short,
)
from ymir_opt.domain.errors import InputError
from ymir_opt.domain.snapshot import Parallelism, Sharing
from ymir_opt.domain.yaml_text import load_yaml

__all__ = [
    "PEFT_TYPES",
    "REQUEST_SCHEMA",
    "DataSource",
    "JobRequest",
    "ModelSource",
    "PeftSettings",
    "Resources",
    "SubmittedJob",
    "TargetMetric",
    "TrainingSettings",
    "key_of",
    "parse_request",
    "parse_submitted",
]

REQUEST_SCHEMA: Final = "ymir.job/1"
# PEFT's names; FULL and BIAS_ONLY are ours
PEFT_TYPES = ("LORA", "IA3", "LN_TUNING", "PREFIX_TUNING", "PROMPT_TUNING", "BIAS_ONLY", "FULL")
# short names of packaged models -> what figures call them
PACKAGED_LABELS: Mapping[str, str] = {"minilm": "all-MiniLM-L6-v2"}
SLUG_LENGTH = 40
HASH_LENGTH = 10


def key_of(job: str) -> str:
    """Return the name under which files of a job are kept: a slug of its id, a dash, ten hex digits.

    >>> key_of("../../x").startswith("x-"), len(key_of("é" * 500)) <= 51
    (True, True)
    """
    slug = re.sub(r"[^a-z0-9_]+", "-", job.lower()).strip("-")[:SLUG_LENGTH].strip("-") or "job"
    return f"{slug}-{hashlib.sha256(job.encode('utf-8', 'replace')).hexdigest()[:HASH_LENGTH]}"


def _one_of(kind: str, known: tuple[str, ...]) -> Any:
    def check(value: str) -> str:
        if value not in known:
            raise ValueError(f"is not a known {kind}; {nearest(value, known)}")
        return value

    return AfterValidator(check)


def _clean_path(value: str) -> str:
    if not value.isprintable():
        raise ValueError("contains a line break or another control character")
    return value


_Path = Annotated[str, Field(min_length=1, max_length=1024), AfterValidator(_clean_path)]
_Name = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(_clean_path)]
_Batch = Annotated[int, Field(ge=1, le=10**6)]


class ModelSource(Model):
    """The foundation model; loaded without remote code, safetensors only."""

    name_or_path: _Path
    revision: _Name | None = None
    dtype: Annotated[str, _one_of("dtype", ("float32", "bfloat16", "float16"))] = "float32"
    layers: PositiveCount | None = None

    @property
    def label(self) -> str:
        """The foundation model's id in snapshots: jobs with the same label share one frozen copy."""
        name = PACKAGED_LABELS.get(self.name_or_path, self.name_or_path.rstrip("/"))
        if name.startswith(("/", ".")):
            # the folder's name tells the user which it is, the hash tells two folders apart
            digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:6]
            name = f"{PurePath(name).name}-{digest}"
        text = re.sub(r"[^\w./:-]", "_", name)
        text += "" if self.layers is None else f"-first{self.layers}"
        text += "" if self.revision is None else "@" + re.sub(r"[^\w.-]", "_", self.revision)
        return text if self.dtype == "float32" else f"{text}-{self.dtype}"


class DataSource(Model):
    """A file, split by the hash of each row, or a folder with one file a split."""

    path: _Path
    train_split: _Name = "train"
    eval_split: _Name = "validation"
    text_column: _Name = "text"
    label_column: _Name = "label"


class PeftSettings(Model):
    """The adapter, in PEFT's names."""

    peft_type: Annotated[str, _one_of("peft_type", PEFT_TYPES)] = "LORA"
    r: Annotated[int, Field(ge=1, le=4096)] = 8
    lora_alpha: Annotated[float, Field(gt=0, le=1e6)] = 16.0
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Annotated[tuple[_Name, ...], Field(min_length=1, max_length=64)] | None = None


class TrainingSettings(Model):
    """How the adapter is trained, in the names of transformers' TrainingArguments."""

    learning_rate: Annotated[float, Field(gt=0, le=1e3)]
    global_batch_size: _Batch
    optim: Annotated[str, _one_of("optim", ("adamw_torch", "sgd"))] = "adamw_torch"
    max_length: Annotated[int, Field(ge=1, le=10**6)] = 128
    num_train_epochs: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    eval_every_samples: Annotated[int, Field(ge=1, le=10**9)] | None = None
    lr_scheduler_type: Annotated[str, _one_of("lr_scheduler_type", ("constant", "linear", "cosine"))] = (
        "constant"
    )
    max_grad_norm: Positive | None = None
    early_stopping_patience: PositiveCount | None = None


class TargetMetric(Model):
    """The value that ends the job before its epochs do."""

    metric: _Name = "eval_accuracy"
    value: Real
    greater_is_better: bool = True


class Resources(Model):
    """What the job may hold; one device trains it, so ``min_gpus`` is 1."""

    min_gpus: PositiveCount = 1
    max_gpus: PositiveCount | None = None
    gpu_types: Annotated[tuple[Id, ...], Field(min_length=1)] | None = None
    memory_gib: NonNegative | None = None
    time_limit_s: Positive | None = None


class JobRequest(Model):
    """One fine-tuning job as its user states it."""

    schema_: Annotated[Literal["ymir.job/1"], Field(alias="schema")]
    name: Id
    queue: Id = "default"
    task: Id | None = None
    model: ModelSource
    data: DataSource
    peft: PeftSettings = PeftSettings()
    training: TrainingSettings
    target: TargetMetric | None = None
    resources: Resources = Resources()
    sharing: Sharing = Sharing.TENANT
    parallelism: Parallelism = Parallelism.DATA
    priority: Annotated[int, Field(ge=-(2**31), le=2**31)] = 0

    @property
    def key(self) -> str:
        """The name under which the job's files are kept."""
        return key_of(self.name)

    @property
    def task_name(self) -> str:
        """What the job learns, for transfer between tasks: ``task``, else the name of its data."""
        if self.task is not None:
            return self.task
        return re.sub(r"[^\w. -]", "_", PurePath(self.data.path).stem)[:200].strip(" .") or "data"

    @property
    def config(self) -> str:
        """What else a throughput depends on: precision, sequence length and rank."""
        return f"{self.model.dtype}-len{self.training.max_length}-r{self.peft.r}"


class SubmittedJob(JobRequest):
    """A request with what the system adds when it takes it: id, owner and time."""

    id: Id
    tenant: Text
    submitted_at_s: Real


M = TypeVar("M", bound=JobRequest)


def _parsed(model: type[M], fields: Mapping[str, Any], name: str) -> M:
    try:
        parsed = model.model_validate_json(json.dumps(fields), by_alias=True, by_name=False)
    except ValidationError as error:
        fault = first_error(error, model)
        if fault.place == "the document":
            raise InputError(name, fault.problem, fault.remedy) from None
        raise InputError(f"{name}: {fault.place}", fault.problem, fault.remedy) from None
    _check(parsed, name)
    return parsed


def _check(request: JobRequest, name: str) -> None:
    """Refuse what no field's type can show."""
    resources = request.resources
    if resources.min_gpus > 1:
        raise InputError(
            f"{name}: resources.min_gpus",
            f"{resources.min_gpus} is more than the one device that trains a job",
            "set it to 1",
        )
    if request.parallelism is Parallelism.PIPELINE:
        raise InputError(
            f"{name}: parallelism", "'pipeline' is not run by this runtime, which uses one device", "use data"
        )
    # what snapshots call the model and the task is made of paths, which may hold what no id may
    for place, value, remedy in (
        ("model.name_or_path", request.model.label, "give a model's name, or a folder's path without '..'"),
        ("data.path", request.task_name, "give a task"),
    ):
        try:
            TypeAdapter(Id).validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise InputError(
                f"{name}: {place}", f"makes the id {short(value)}: {problem[:1].lower()}{problem[1:]}", remedy
            ) from None


def parse_request(text: bytes, name: str = "request") -> JobRequest:
    """Parse and validate a request.

    Parameters
    ----------
    text : bytes
        A YAML document of schema ``ymir.job/1``.
    name : str
        What to call the document in an error.

    Raises
    ------
    InputError
        Naming place, value and remedy of the first fault.
    """
    fields = load_yaml(text, name)
    found = fields.get("schema")
    if found != REQUEST_SCHEMA:
        problem = "has no schema" if found is None else f"is of schema {short(found)}"
        raise InputError(name, problem, f"begin with `schema: {REQUEST_SCHEMA}`")
    return _parsed(JobRequest, fields, name)


def parse_submitted(text: bytes, name: str = "request.json") -> SubmittedJob:
    """Parse what the jobs folder keeps of a request; raises `InputError`."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(name, f"is not valid JSON ({short(str(error))})", "submit the job again") from None
    if not isinstance(fields, dict):
        raise InputError(name, "is not an object", "submit the job again")
    return _parsed(SubmittedJob, fields, name)
