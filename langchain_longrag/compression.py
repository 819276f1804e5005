"""Retrieved documents made shorter for one question (Recomp), or read as another text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LanguageModelLike
from langchain_core.prompts import BasePromptTemplate
from pydantic import ConfigDict, SkipValidation

from langchain_longrag._passages import from_passage, to_passages
from langchain_longrag._requests import Checked, Models, to_prompt, with_callbacks
from longrag.calls import Flow, run
from longrag.errors import InvalidParameterError
from longrag.ingestion.chunking import check_size
from longrag.models.tokens import count_tokens
from longrag.prompts import COMPRESS
from longrag.recipes.passages import compressed_passages, summary_passages
from longrag.refinement.compression import compress_abstractive, compress_extractive
from longrag.refinement.pieces import Limit

Method = Literal["extractive", "abstractive"]


class CompressDocuments(Checked, BaseDocumentCompressor):
    """Keep of retrieved documents what a question needs (Recomp).

    "extractive" keeps the sentences that are nearest to the question, over all documents together,
    in their order; any embedding model will do. ``metadata["pieces"]`` of a document that was
    shortened has for each stretch that was kept its characters ``start_index`` and ``end_index``
    in the text as it was, and ``at``, the character at which it now stands; with the document's
    own ``start_index`` they are characters of its source. ``members`` and ``best_chunk`` of long
    units are moved along.

    "abstractive" has a language model write what each document says about the question; any chat
    model, LLM or runnable will do. Documents that say nothing of it are left out. With ``together``
    one call reads all documents, and one document comes of them, whose metadata names them in
    ``document_ids``.

    Documents are copied, never changed; their ids, scores and sources stay. One of which nothing is
    kept is left out, as is one without text.

    Args:
        method: "extractive" or "abstractive".
        embedding: extractive: embeds question and sentences.
        llm: abstractive: writes the summaries.
        ratio: the share to keep; 0.4 where there is no other limit.
        token_budget: extractive: the tokens that may be kept of all documents together.
        max_words: abstractive: the words asked for in each summary.
        together: abstractive: whether one call reads all documents.
        prompt: abstractive: a template with the variables ``context``, ``input`` and, where wanted,
            ``max_words``.
        max_concurrency: abstractive: the calls in flight at a time.
        length_function: counts tokens.

    Raises:
        InvalidParameterError: a setting that is not allowed, or a blank question.
        EmbeddingError: the embedding model returned unusable vectors.
        GenerationError: the language model gave no text.

    Source: Best Practices §3.7; Xu et al. 2023.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    method: SkipValidation[Method] = "extractive"
    embedding: SkipValidation[Embeddings | None] = None
    llm: SkipValidation[LanguageModelLike | None] = None
    ratio: SkipValidation[float | None] = None
    token_budget: SkipValidation[int | None] = None
    max_words: SkipValidation[int | None] = None
    together: SkipValidation[bool] = False
    prompt: SkipValidation[BasePromptTemplate[Any] | None] = None
    max_concurrency: SkipValidation[int] = 4
    length_function: Callable[[str], int] = count_tokens

    def _prepare(self) -> None:
        if self.method not in get_args(Method):
            raise InvalidParameterError("method", self.method, '"extractive" or "abstractive"')
        extractive = self.method == "extractive"
        needed, other = ("embedding", "llm") if extractive else ("llm", "embedding")
        if getattr(self, needed) is None:
            raise InvalidParameterError(needed, None, f"given for method {self.method!r}")
        unset = {other: None, "token_budget": None}
        if extractive:
            unset = {other: None, "max_words": None, "prompt": None}
            if self.together:
                raise InvalidParameterError("together", True, f"left out for {self.method!r}")
        for name in unset:
            if getattr(self, name) is not None:
                value = getattr(self, name)
                raise InvalidParameterError(name, value, f"left out for method {self.method!r}")
        check_size("max_concurrency", self.max_concurrency)
        Limit(self.ratio, self.token_budget)
        if not extractive:
            run(self._summaries("?", []), lambda _: "")

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return what is left of the documents."""
        return self._models(callbacks).run(self._flow(documents, query))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        """Return what ``compress_documents`` does, with the models' async calls."""
        return await self._models(callbacks).arun(self._flow(documents, query))

    def _models(self, callbacks: Callbacks | None) -> Models:
        return Models(
            llm=self.llm,
            embedding=self.embedding,
            config=with_callbacks(callbacks),
            max_concurrency=self.max_concurrency if self.method == "abstractive" else 1,
        )

    def _flow(self, documents: Sequence[Document], query: str) -> Flow[list[Document]]:
        passages = to_passages(documents)
        texts = [passage.text for passage in passages]
        if self.method == "extractive":
            kept = yield from compress_extractive(
                query,
                texts,
                ratio=self.ratio,
                token_budget=self.token_budget,
                count_tokens=self.length_function,
            )
            found = compressed_passages(passages, kept)
        else:
            found = summary_passages(passages, (yield from self._summaries(query, texts)))
        return [from_passage(passage) for passage in found]

    def _summaries(self, query: str, texts: Sequence[str]) -> Flow[Any]:
        return compress_abstractive(
            query,
            texts,
            ratio=self.ratio,
            max_words=self.max_words,
            together=self.together,
            prompt=to_prompt(
                self.prompt,
                COMPRESS,
                {"context": "context", "input": "question", "max_words": "max_words"},
            ),
        )
