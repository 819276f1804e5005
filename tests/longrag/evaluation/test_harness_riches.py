"""RICHES as a pipeline of the harness: what is quoted is what was read."""

import re

import numpy as np
import pytest

from longrag.errors import InvalidParameterError
from longrag.evaluation.datasets import Dataset, Question
from longrag.evaluation.harness import Pipeline, evaluate
from longrag.evaluation.harness.evaluating import possible_pipelines
from longrag.evaluation.harness.settings import variants
from longrag.models import LsaEmbedder
from longrag.prompts import RICHES_MULTI_HOP, RICHES_SINGLE_HOP
from longrag.types import Document
from tests.tiny_models import PieceTokenizer, TableModel

BUILT, ORCHARD = " keyword: built", " keyword: orchard orchard orchard"
TOPICS = ("harbour", "orchard", "railway", "glacier")
ASKED = re.compile(r"\nquestion: (.*)\npassage:")


def page(at):
    return f"The {TOPICS[at]} was built in {1800 + at}. It is kept by Keeper{at}."


@pytest.fixture(scope="module")
def town():
    documents = tuple(Document(f"{one}.md", page(at), one) for at, one in enumerate(TOPICS))
    questions = tuple(
        Question(f"q{at}", f"When was the {one} built?", (str(1800 + at),), (f"{one}.md",))
        for at, one in enumerate(TOPICS)
    )
    return Dataset("town", documents, questions)


@pytest.fixture(scope="module")
def tokenizer():
    texts = [RICHES_SINGLE_HOP, RICHES_MULTI_HOP, "When was the built? answer: 1799 keyword: << >>"]
    texts += [f"{TOPICS[at]}. {page(at)}" for at in range(len(TOPICS))]
    words = {word for text in texts for word in re.findall(r" ?\w+", text)}
    return PieceTokenizer(*sorted(words | set("".join(texts)) | {" <<", " >>"}))


def writer(tokenizer, answer, *thoughts):
    """A model that wants to quote the question's words behind each thought, and then to answer."""

    def probabilities(prefix):
        text = tokenizer.decode(prefix)
        asked = [*ASKED.finditer(text)][-1]
        quotes = text[asked.end() :].split(" >>")
        wanted = f"\nanswer: {answer}\nquestion:"
        if len(quotes) <= len(thoughts):
            wanted = f"{thoughts[len(quotes) - 1]} <<"
        written = quotes[-1]
        vector = np.full(tokenizer.vocab_size, 1e-6)
        named = [one for one in (*TOPICS, "built") if one in asked[1]]
        if named and "<<" in written:
            vector[[tokenizer.encode(f" {one}")[0] for one in named]] += 1e-4
        elif wanted.startswith(written) and wanted != written:
            vector[tokenizer.encode(wanted[len(written) :])[0]] += 1
        return vector / vector.sum()

    return TableModel(tokenizer, probabilities, name=f"writes {answer}")


def by_words(texts, role):
    """Vectors of how often topics and other words of the questions are in a text."""
    words = (*TOPICS, "built", "kept")
    return np.array([[text.count(word) + 1e-3 for word in words] for text in texts], np.float32)


def test_the_quoted_sentence_is_what_is_read_and_the_answer_is_the_models(town, tokenizer):
    model = writer(tokenizer, "1799", BUILT)
    given = {"language_model": model, "embedders": {"words": by_words}}
    (result,) = evaluate([town], ["riches"], **given).results
    assert [row["ranking"] for row in result.rows] == [[f"{one}.md"] for one in TOPICS]
    assert result.values("AR") == [1.0] * 4
    assert result.values("R") == [1.0] * 4
    # The model answers 1799 whatever it quotes; a reader is not asked.
    assert {row["answer"] for row in result.rows} == {"1799"}
    assert result.values("EM") == [0.0] * 4
    assert all(row["tokens"] < 20 for row in result.rows)
    costs = result.rows[0]["costs"]
    assert costs["calls"] == 1
    assert costs["prompt_tokens"] > 100 > costs["reply_tokens"] > 10


def test_a_further_quote_is_searched_for_with_the_thought_before_it(town, tokenizer):
    model = writer(tokenizer, "1801", BUILT, ORCHARD)
    two = Pipeline.named("riches", quotes=2, candidates=1)
    given = {"language_model": model, "embedders": {"words": by_words}}
    (result,) = evaluate([town], [two], **given).results
    first, second = result.rows[:2]
    # The second search is by the question and the thought, and finds the orchard.
    assert first["ranking"] == ["harbour.md", "orchard.md"]
    assert second["ranking"] == ["orchard.md"]


def test_quotes_beyond_the_budget_are_not_read(town, tokenizer):
    model = writer(tokenizer, "1801", BUILT, ORCHARD)
    two = Pipeline.named("riches", quotes=2, candidates=1, token_budget=12)
    given = {"language_model": model, "embedders": {"words": by_words}}
    (result,) = evaluate([town], [two], **given).results
    assert result.rows[0]["ranking"] == ["harbour.md"]


def test_the_passages_of_a_long_document_are_searched(tokenizer):
    whole = Document("town.md", "\n\n".join(map(page, range(4))), "glacier")
    question = Question("q", "When was the glacier built?", ("1803",), ("town.md",))
    model = writer(tokenizer, "1799", BUILT)
    one = Pipeline.named("riches", chunk_size=20, candidates=1, search="keywords")
    (result,) = evaluate(
        [Dataset("whole", (whole,), (question,))],
        [one],
        language_model=model,
        embedders={"lsa of the page": LsaEmbedder([page(at) for at in range(4)])},
    ).results
    assert result.rows[0]["measures"]["AR"] == 1.0
    assert result.rows[0]["ranking"] == ["town.md"]


def test_it_needs_a_model_that_can_be_constrained(town, tokenizer):
    with pytest.raises(InvalidParameterError, match=r"Pass language_model to evaluate: .*riches"):
        evaluate([town], ["riches"])
    assert "riches" not in possible_pipelines(None)
    assert "riches" in possible_pipelines(None, writer(tokenizer, ""))


def test_modules_around_a_search_change_nothing(town):
    grid = {"repack": ["forward", "sides"], "reader": ["off", "extractive"], "quotes": [1, 2]}
    assert [one.label for one in variants([Pipeline.named("riches")], grid)] == [
        "riches, quotes=1",
        "riches, quotes=2",
    ]


def test_another_model_is_asked_again(town, tokenizer, tmp_path):
    answers = []
    for year in ("1799", "1803", "1799"):
        model = writer(tokenizer, year, BUILT)
        (result,) = evaluate(
            [town], ["riches"], language_model=model, folder=tmp_path, questions=1
        ).results
        answers.append((result.rows[0]["answer"], bool(model.calls)))
    assert answers == [("1799", True), ("1803", True), ("1799", False)]
