"""The best of a model's logits, on the device they are on and without sorting the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from longrag.models.language_model import Next, Scores, TokenArray, best

if TYPE_CHECKING:
    import torch


def among(
    logits: torch.Tensor, rows: Sequence[int], asked: Sequence[Next], known: int
) -> list[Scores]:
    """Return the logits of the best allowed tokens."""
    import torch

    sets = [_without(question) for question in asked]
    width = logits.shape[1]
    places = np.concatenate([ids + row * width for ids, row in zip(sets, rows, strict=True)])
    taken = logits.reshape(-1)[torch.from_numpy(places).to(logits.device)].double().cpu().numpy()
    parts = np.split(taken, np.cumsum([len(ids) for ids in sets])[:-1])
    return [
        _best(ids, values, question.k)
        for ids, values, question in zip(sets, parts, asked, strict=True)
    ]


def _without(question: Next) -> TokenArray:
    allowed = question.allowed
    if allowed is None or not len(question.banned):
        return np.zeros(0, np.int64) if allowed is None else allowed.astype(np.int64, copy=False)
    return np.setdiff1d(allowed, question.banned).astype(np.int64, copy=False)


def _best(ids: TokenArray, values: NDArray[np.float64], k: int) -> Scores:
    """Return the best k without sorting the others."""
    if len(ids) > 8 * k:
        good = values >= np.partition(values, -k)[-k]
        ids, values = ids[good], values[good]
    return best(ids, values, k)


def anywhere(
    logits: torch.Tensor, rows: Sequence[int], asked: Sequence[Next], known: int
) -> list[Scores]:
    """Return the logits of the best tokens that are not banned."""
    import torch

    chosen = logits[torch.tensor(rows, device=logits.device), :known]
    counts = []
    for row, question in enumerate(asked):
        banned = question.banned[(question.banned >= 0) & (question.banned < known)]
        counts.append(known - len(banned))
        if len(banned):
            chosen[row, torch.from_numpy(banned.astype(np.int64)).to(logits.device)] = -torch.inf
    most = min(max(question.k for question in asked) + 1, known)
    top = torch.topk(chosen, most, dim=1)
    values, ids = top.values.double().cpu().numpy(), top.indices.cpu().numpy()
    found = []
    for row, question in enumerate(asked):
        k = min(question.k, counts[row])
        if k < most and values[row, k - 1] == values[row, k]:
            # Which of equals is in the top is left open; the lower ids are wanted.
            everything = chosen[row].double().cpu().numpy()
            found.append(_best(np.arange(known), everything, k))
        else:
            order = np.lexsort((ids[row, :k], -values[row, :k]))
            found.append(Scores(ids[row, :k][order], values[row, :k][order]))
    return found
