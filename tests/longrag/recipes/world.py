"""A small corpus with its models, for the tests of the recipes."""

import asyncio
import re
from dataclasses import replace
from functools import partial

import numpy as np

from longrag import recipes
from longrag.calls import Embed, Fetch, Generate, Search
from longrag.recipes import Hybrid, Recipe, search_each
from longrag.recipes.modules import Refine, compressing
from longrag.recipes.passages import Passage
from longrag.recipes.runs import refine_by
from longrag.refinement import compress_abstractive
from longrag.retrieval import decompose
from tests.fakes import hash_vector

QUERY = "Who built the stone bridge at Lund?"
TASK = "Translate into French: The bridge was built in 1884."
TEXTS = {
    "bridge": "Ada Brandt built the stone bridge at Lund in 1884. It has five arches of granite.",
    "mill": "The mill grinds rye. It burned down in 1684. The miller of Lund rebuilt it.",
    "weir": "The weir holds back the river. Eels pass it in autumn. It is made of stone.",
    "church": "The church has a clock. Its bell is cracked. Nobody knows who built it.",
    "tram": "A tram runs to the harbour. It is blue. A ticket costs two crowns.",
    "moor": "Peat is cut on the moor. Cranes rest there. Fog comes in October.",
    "smithy": "The smithy is closed. Its anvil stands in a museum. Horses are rare today.",
}
PASSAGES = {
    id_: Passage.of_document(f"p-{id_}", text, doc_id=id_, title=id_.title())
    for id_, text in TEXTS.items()
}
CHINESE = re.compile("[\u4e00-\u9fff]")
STORED = {one.id: one for one in PASSAGES.values()}


class World:
    """Answers every request of a recipe from the seven texts, and notes what was asked."""

    def __init__(self, *, found=None, replies=None):
        self.asked = []
        self.found = list(PASSAGES.values()) if found is None else found
        self.replies = replies or {}

    def __call__(self, request):
        self.asked.append(request)
        match request:
            case Generate(prompt=prompt):
                kind = self.kind(prompt)
                return self.replies.get(kind, f"a reply to the {kind}")
            case Embed(texts=texts):
                # Chinese has no spaces: its characters are its words.
                return np.stack([hash_vector(CHINESE.sub(r" \g<0> ", text)) for text in texts])
            case Search(query=query, vector=vector):
                near = hash_vector(query) if vector is None else np.asarray(vector)
                scored = [
                    replace(one, score=float(hash_vector(one.text) @ near))
                    if isinstance(one, Passage)
                    else one
                    for one in self.found
                ]
                return sorted(scored, key=lambda one: -(one.score or 0))[: request.top_k]
            case Fetch(unit_ids=ids):
                return {id_: STORED[id_] for id_ in ids if id_ in STORED}
            case Refine(passages=passages):
                return self.replies.get("refine", passages)
        raise NotImplementedError(type(request).__name__)

    async def asynchronously(self, request):
        await asyncio.sleep(0)
        return self(request)

    @staticmethod
    def kind(prompt):
        for kind, mark in (("hyde", "made-up"), ("hyde", "a short passage"),
                           ("gate", "can be met with"), ("rewrite", "one short query for a search"),
                           ("decompose", "simpler questions"), ("summary", "Write down only what"),
                           ("answer", "Answer the question from")):  # fmt: skip
            if mark in prompt:
                return kind
        return "direct"

    @property
    def names(self):
        return [
            self.kind(one.prompt) if isinstance(one, Generate) else type(one).__name__.lower()
            for one in self.asked
        ]


def scores(query, texts):
    """Count the words that a text shares with the query, shorter texts first."""
    words = set(query.lower().rstrip("?").split())
    return [len(words & set(text.lower().replace(".", "").split())) - len(text) / 1e6
            for text in texts]  # fmt: skip


best_performance = partial(recipes.best_performance, scorer=scores)
balanced_efficiency = partial(recipes.balanced_efficiency, scorer=scores)


def timeless(trace):
    return tuple(replace(step, seconds=0.0) for step in trace.steps)


def keyword_hybrid(**changes):
    return replace(Hybrid.over(list(PASSAGES.values())), **changes)


RECIPES = {
    "best": lambda: best_performance(hybrid=keyword_hybrid()),
    "balanced": lambda: balanced_efficiency(hybrid=keyword_hybrid()),
    "bare": Recipe,
    "abstractive": lambda: best_performance(compressor=compressing(compress_abstractive)),
    "outside": lambda: balanced_efficiency(reranker=refine_by(object(), reranks=True)),
    "sub-questions": lambda: Recipe(transform=decompose, retriever=search_each()),
}
LISTED = {"decompose": '["Who built the bridge?", "Where is the stone bridge?"]'}


def check_provenance(passage, texts):
    """Every member of a passage, and every stretch kept, stands verbatim where it says."""
    for member in passage.members:
        there = texts[member.doc_id][member.doc_start : member.doc_end]
        assert passage.text[member.start : member.end] == there
    assert [one.text_index for one in passage.kept] == [0] * len(passage.kept)
