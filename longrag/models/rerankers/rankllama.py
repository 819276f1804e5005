"""RankLLaMA: a decoder with a head of one number, read at the last token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from longrag.errors import InvalidParameterError
from longrag.models.rerankers.networks import (
    AS_TEXT,
    Encoded,
    NetworkScorer,
    cut_passage,
    neutraliser,
)

if TYPE_CHECKING:
    import torch


class RankLlamaScorer(NetworkScorer):
    """Scores by a linear head on the last token's state of a decoder.

    The model reads ``<s>query: {query}<s>document: {text}``, as the released checkpoints were
    trained, where ``<s>`` is the tokenizer's begin token if it has one. The paper writes an end
    token after it: set ``end_token`` for a model that was trained so. A title goes before the text
    with a space. The score is the head's number, without a bound. What is longer than
    ``max_length`` tokens loses the end of its passage; the query is never cut. (The released code
    cuts queries to 32 tokens and passages to 161.)

    ``load`` reads the checkpoint of a whole model, not of an adapter. The model is put into
    evaluation mode and stays on its device and in its dtype; scores are float32. Inputs are padded
    on the right, and the last token is found without a padding token being set anywhere.
    Deterministic; the last bits depend on what is scored together.

    Args:
        model: a decoder of transformers with a sequence classification head of one label, such as
            ``LlamaForSequenceClassification``. Merge an adapter into it first.
        tokenizer: its fast tokenizer.
        end_token: whether the tokenizer's end token goes after the text.
        max_length: tokens of an input.
        batch_size: inputs read at once.

    Raises:
        MissingExtraError: the extra ``rerank`` is not installed.
        InvalidParameterError: the model has no such head, the tokenizer is slow or lacks the end
            token, or a size is not allowed.

    Source: Ma et al. 2023, "Fine-Tuning LLaMA for Multi-Stage Text Retrieval", §2.3.
    """

    _task = "SequenceClassification"
    _load_settings: ClassVar[Mapping[str, Any]] = {"num_labels": 1}

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        end_token: bool = False,
        max_length: int = 512,
        batch_size: int = 8,
    ) -> None:
        super().__init__(model, tokenizer, max_length, batch_size)
        head: Any = getattr(model, "score", None)
        if getattr(head, "out_features", None) != 1:
            raise InvalidParameterError(
                "model", type(model).__name__, "a decoder with a score head of one label"
            )
        if end_token and tokenizer.eos_token_id is None:
            raise InvalidParameterError.because("The tokenizer has no end token: omit end_token.")
        self._head = head
        self._tokenizer = tokenizer
        self._neutral = neutraliser(tokenizer)
        self._begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        self._end = [tokenizer.eos_token_id] if end_token else []

    def _forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        import torch

        states = self._model.base_model(**inputs, use_cache=False).last_hidden_state
        last = inputs["attention_mask"].sum(dim=1) - 1
        rows = torch.arange(len(last), device=states.device)
        found: torch.Tensor = self._head(states[rows, last.to(states.device)])[:, 0]
        return found

    def _encode(self, query: str, passage: str) -> Encoded:
        asked = self._ids(f"query: {query}")
        label, read = len(self._ids("document:")), self._ids(f"document: {passage}")
        ids = [*self._begin, *asked, *self._begin, *read, *self._end]
        last = len(ids) - len(self._end)
        return cut_passage(
            Encoded(ids, []), last - len(read) + min(label, len(read)), last, self._max_length
        )

    def _ids(self, text: str) -> list[int]:
        ids = self._tokenizer(text, add_special_tokens=False, **AS_TEXT)["input_ids"]
        return self._neutral(ids, [0] * len(ids))
