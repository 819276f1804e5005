"""A prompt of worked examples as the turns of a chat, the last of which the model continues.

A chat model that is given examples and a question in one message talks about them. Where they are
turns, and the first words of its answer are written already, it goes on in their form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

_LABEL: Final = re.compile(r"(?:passage|query|answer):")
_ASKED: Final = "question:"
_BEGIN, _END = "\ue000", "\ue001"
_PLACEHOLDER: Final = re.compile(f"{_BEGIN}(\\d+){_END}")


class Turn(NamedTuple):
    """What is said in one turn by "user" or "assistant"."""

    role: str
    text: str


def chat_turns(prompt: str) -> list[Turn]:
    """Return the turns that a prompt stands for.

    A prompt whose last line begins with a label, such as "passage:", has examples and a question in
    blocks, each with a line "question:" and further down one with that label. From there on a block
    is the assistant's, and the model continues the last one. The line breaks between two turns
    are left out. Any other prompt is one message of the user's.
    """
    begun = _LABEL.match(prompt[prompt.rfind("\n") + 1 :])
    label = begun[0] if begun else ""
    blocks = re.split(rf"^(?={_ASKED})", prompt, flags=re.MULTILINE)
    if not label or len(blocks) < 2:
        return [Turn("user", prompt)]
    turns = []
    head, *blocks = blocks
    for block in blocks:
        asked, found, answered = block.partition(f"\n{label}")
        if not found:
            return [Turn("user", prompt)]
        turns.append(Turn("user", (head + asked).strip("\n")))
        turns.append(Turn("assistant", (label + answered).strip("\n")))
        head = ""
    return turns


def placeholders(turns: Sequence[Turn]) -> list[dict[str, str]]:
    """Return messages in which a placeholder stands for the text of each turn."""
    return [{"role": turn.role, "content": _placeholder(n)} for n, turn in enumerate(turns)]


def split_rendered(rendered: str, count: int) -> list[str] | None:
    """Return what a template puts around ``count`` placeholders; None if it changed them."""
    if [int(found) for found in _PLACEHOLDER.findall(rendered)] != list(range(count)):
        return None
    return _PLACEHOLDER.split(rendered)[::2]


def splice(
    ids: Sequence[int], turns: Sequence[Turn], encode: Callable[[str], Sequence[int]]
) -> list[int] | None:
    """Put the tokens of turns into those of rendered messages, where the placeholders are.

    None where a placeholder is not there once. What looks like a special token in a turn is text,
    as far as ``encode`` gives it so.
    """
    found, rest = [], list(ids)
    for number, turn in enumerate(turns):
        own = list(encode(_placeholder(number)))
        places = [n for n in range(len(rest) - len(own) + 1) if rest[n : n + len(own)] == own]
        if len(places) != 1:
            return None
        found += [*rest[: places[0]], *encode(turn.text)]
        rest = rest[places[0] + len(own) :]
    return [*found, *rest]


def _placeholder(number: int) -> str:
    return f"{_BEGIN}{number}{_END}"
