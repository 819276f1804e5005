"""Train the small language model that remembers an outdated state of the world.

    python -m examples.riches_world.train --seed 0 --out .riches/seed-0

Half a million parameters and a tokenizer of bytes, a minute or two on one core. The same seed gives
the same weights on the same machine.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from examples.riches_world.lessons import Lesson, Teacher
from examples.riches_world.world import World, make_world

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = 1300
BATCH = 32
GATHERED = 16
"""So many batches are made at a time."""
LEARNING_RATE = 6e-3
WARM_UP = 60
VOCABULARY = 1200
END = "<|end|>"


def load_or_train(
    folder: Path | None = None, *, seed: int = 0, steps: int = STEPS
) -> tuple[Any, Any]:
    """Return model and tokenizer from a folder, after training them into it if it has none.

    By default from the folder of the seed in ``.riches``, or in what LONGRAG_RICHES names.
    """
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    if folder is None:
        folder = Path(os.environ.get("LONGRAG_RICHES", ".riches")) / f"seed-{seed}"
    if not (folder / "model.safetensors").exists():
        train(make_world(seed), folder, seed=seed, steps=steps)
    model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True)
    return model.eval(), PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def train(world: World, folder: Path, *, seed: int = 0, steps: int = STEPS) -> None:
    """Train tokenizer and model on one thread, and write both into a folder."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tokenizer = make_tokenizer(lesson for lesson in islice(lessons(world, seed), 4000))
        model = make_model(tokenizer, seed)
        learn(model, tokenizer, lessons(world, seed + 1), steps)
    finally:
        torch.set_num_threads(threads)
    # The weights are written last: a folder that has them is complete.
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def lessons(world: World, seed: int) -> Iterator[Lesson]:
    """Yield lessons without end."""
    teacher = Teacher(world, seed)
    while True:
        yield teacher.lesson()


def make_tokenizer(read: Iterator[Lesson]) -> Any:
    """Learn pairs of bytes; a text's tokens do not depend on what follows a space."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((lesson.prompt + lesson.output for lesson in read), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )


def make_model(tokenizer: Any, seed: int) -> Any:
    """Make a Llama of three layers with weights drawn from the seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=256,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def learn(model: Any, tokenizer: Any, taught: Iterator[Lesson], steps: int) -> None:
    """Minimise the loss of the outputs, their objects included: how sure the model is matters."""
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    model.train()
    batches = _batches(tokenizer, taught, seed=steps)
    for ids, labels in islice(batches, steps):
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()


def _rate(step: int, steps: int) -> float:
    """Rise in a line, then fall as a cosine does to a twentieth."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return 0.05 + 0.475 * (1 + math.cos(math.pi * done))


def _batches(tokenizer: Any, taught: Iterator[Lesson], *, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yield token ids and labels; lessons of like length stand together, to pad little."""
    random = Random(seed)
    while True:
        some = list(islice(taught, BATCH * GATHERED))
        prompts = tokenizer([lesson.prompt for lesson in some])["input_ids"]
        whole = tokenizer([lesson.prompt + lesson.output + END for lesson in some])["input_ids"]
        rows = sorted(zip(whole, map(len, prompts), strict=True), key=lambda row: len(row[0]))
        batches = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]
        random.shuffle(batches)
        yield from (_padded(batch, tokenizer.pad_token_id) for batch in batches)


def _padded(rows: list[tuple[list[int], int]], end: int) -> tuple[Any, Any]:
    import torch

    width = max(len(ids) for ids, _ in rows)
    padding = [width - len(ids) for ids, _ in rows]
    ids = [ids + [end] * more for (ids, _), more in zip(rows, padding, strict=True)]
    labels = [
        [-100] * prompt + ids[prompt:] + [-100] * more
        for (ids, prompt), more in zip(rows, padding, strict=True)
    ]
    return torch.tensor(ids), torch.tensor(labels)


def main() -> None:
    """Train one seed from the command line."""
    parser = argparse.ArgumentParser(description="Train the small model of the world.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    began = time.process_time()
    train(make_world(options.seed), options.out, seed=options.seed, steps=options.steps)
    print(f"trained in {time.process_time() - began:.0f} seconds of CPU: {options.out}")


if __name__ == "__main__":
    main()
