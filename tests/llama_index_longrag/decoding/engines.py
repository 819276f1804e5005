"""Query engines over a scripted model, as the tests of the engine ask them."""

from __future__ import annotations

from llama_index_longrag import RichesQueryEngine
from tests.llama_index_longrag.riches_stories import BURNED, TOLD, Scripted, documents

MILL = "The mill grinds rye. It burned down in 1684."
WEIR = "The weir holds the river back."


def make(scripts=None, *, nodes=None, model=None, **settings):
    model = model or Scripted({BURNED: TOLD} if scripts is None else scripts)
    nodes = documents() if nodes is None else nodes
    settings.setdefault("prompt", "question: {question}\npassage:")
    return RichesQueryEngine.from_documents(nodes, language_model=model, **settings)


def answering(output, **settings):
    return make({BURNED: output}, **settings).query(BURNED)
