"""Servers that speak vLLM's protocol over a model of characters."""

import pytest

from longrag.models import VllmLanguageModel
from tests.longrag.models.vllm.tables import TABLE, TOKENIZER
from tests.vllm_stand_in import VllmStandIn


@pytest.fixture
def serve(tmp_path):
    """Start a stand-in server, and make models of it that are closed in the end."""
    entered = []

    def start(probabilities=TABLE, *, tokenizer=TOKENIZER, server=None, **settings):
        stand_in = VllmStandIn(tmp_path, tokenizer, probabilities, **(server or {}))
        entered.append(stand_in.__enter__())
        return stand_in, connect(stand_in, **{"tokenizer": tokenizer, **settings})

    def connect(stand_in, **settings):
        client = stand_in.client()
        entered.append(client.__enter__())
        given = {
            "model": "served",
            "end_ids": (stand_in.tokenizer.vocab_size - 1,),
            "retry_wait": 0.0,
            "context_window": 500,
            **settings,
        }
        return VllmLanguageModel("http://vllm/v1", http_client=client, **given)

    yield start
    for one in reversed(entered):
        one.__exit__(None, None, None)
