"""monoT5: a T5 that says "true" or "false" to a query and a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


class MonoT5Scorer(NetworkScorer):
    """Scores by the logits of two tokens in the first step of a T5's decoder.

    The encoder reads "Query: {query} Document: {text} Relevant:" and the end token. The score is
    the logarithm of the softmax over the logits of the two tokens, taken for the one that says yes:
    a log probability, at most 0. What is longer than ``max_length`` tokens loses the end of its
    passage, so that query and "Relevant:" are always kept. (The paper's code cuts the end of the
    whole input.)

    ``load`` reads a checkpoint. The model is put into evaluation mode and stays on its device and
    in its dtype; scores are float32. Deterministic; the last bits depend on what is scored
    together.

    Args:
        model: an encoder-decoder of transformers with a language-model head.
        tokenizer: its fast tokenizer.
        true_token: the piece that says yes; "▁true" for ``castorini/monot5-*`` (id 1176),
            "▁yes" for ``unicamp-dl/mt5-base-mmarco-v2``.
        false_token: the piece that says no; "▁false" (id 6136) or "▁no".
        max_length: tokens of an input; T5 was trained on 512.
        batch_size: inputs read at once.

    Raises:
        MissingExtraError: the extra ``rerank`` is not installed.
        InvalidParameterError: the model is not an encoder-decoder, a token is not in the
            vocabulary, the tokenizer is slow, or a size is not allowed.

    Source: Nogueira et al. 2020, "Document Ranking with a Pretrained Sequence-to-Sequence Model".
    """

    _task = "Seq2SeqLM"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        true_token: str = "▁true",
        false_token: str = "▁false",
        max_length: int = 512,
        batch_size: int = 16,
    ) -> None:
        super().__init__(model, tokenizer, max_length, batch_size)
        if not getattr(model.config, "is_encoder_decoder", False):
            raise InvalidParameterError("model", type(model).__name__, "an encoder-decoder")
        vocabulary = tokenizer.get_vocab()
        for name, token in (("true_token", true_token), ("false_token", false_token)):
            if token not in vocabulary:
                raise InvalidParameterError(name, token, "a token of the tokenizer's vocabulary")
        self._answers = [vocabulary[false_token], vocabulary[true_token]]
        self._tokenizer = tokenizer
        self._neutral = neutraliser(tokenizer)
        self._pad_id = model.config.pad_token_id or 0

    def _forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        import torch

        batch = inputs["input_ids"].shape[0]
        first = torch.full(
            (batch, 1), self._model.config.decoder_start_token_id, device=self._model.device
        )
        logits = self._model(**inputs, decoder_input_ids=first, use_cache=False).logits
        false, true = logits[:, 0, self._answers].float().unbind(dim=1)
        # The log softmax of two, without rounding all that is nearly certain to 0.
        return torch.nn.functional.logsigmoid(true - false)

    def _encode(self, query: str, passage: str) -> Encoded:
        head = f"Query: {query} Document: "
        read = self._tokenizer(
            f"{head}{passage} Relevant:",
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            **AS_TEXT,
        )
        spans, special = read["offset_mapping"], read["special_tokens_mask"]
        inside = [
            place
            for place, ((start, end), extra) in enumerate(zip(spans, special, strict=True))
            if not extra and end > len(head) and start < len(head) + len(passage)
        ]
        first, last = (inside[0], inside[-1] + 1) if inside else (0, 0)
        ids = self._neutral(read["input_ids"], special)
        return cut_passage(Encoded(ids, []), first, last, self._max_length)
