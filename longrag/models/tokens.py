"""The token counter that needs no vocabulary, no network and no framework.

It is the default of every ``count_tokens`` parameter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from operator import index
from typing import Final

from longrag.errors import InvalidParameterError
from longrag.types import TokenCounter, Tokenize

# Han with its radicals and iteration marks, kana (half-width too), and Hangul with its jamo.
_CJK: Final = (
    "\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\u1100-\u11ff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_LATIN: Final = r"[^\W\u0250-\U0010ffff]{1,8}"
_OTHER_ALPHABET: Final = rf"[^\W\u0000-\u024f{_CJK}]{{1,2}}"
_TOKEN: Final = re.compile(rf"{_LATIN}|[{_CJK}]|{_OTHER_ALPHABET}|[^\w\s]")


def count_tokens(text: str) -> int:
    r"""Estimate the tokens of a text from its characters alone.

    One token for every Chinese, Japanese or Korean character, for every run of up to 8 Latin
    letters or digits, for every run of up to 2 letters of another alphabet, and for every
    punctuation mark or symbol; white space is free. The count of two texts joined by white space
    is the sum of their counts.

    Divided by the count of OpenAI's ``cl100k_base``: English 0.91 (full of names) to 1.02,
    Markdown 1.04 to 1.08, Chinese 0.95 to 1.00, Japanese 0.99, Korean 0.83, Russian 1.06, Arabic
    and Thai 0.7, Greek and Hebrew 0.55. Long numbers and emoji count too little. Give your own
    tokenizer's counter where a model's window is tight.

    Raises:
        InvalidParameterError: The text is not a string.
    """
    if not isinstance(text, str):
        raise InvalidParameterError("text", text, "a string")
    return len(_TOKEN.findall(text))


def token_counter(tokenizer: Tokenize | None) -> TokenCounter:
    """Return what counts by a tokenizer; ``count_tokens`` for None.

    Raises:
        InvalidParameterError: the tokenizer is not a function. What is returned raises it where the
            tokenizer gives neither tokens nor their number.
    """
    if tokenizer is None:
        return count_tokens
    if not callable(tokenizer):
        raise InvalidParameterError("tokenizer", tokenizer, "None or a function of a text")
    return _Counter(tokenizer)


@dataclass(frozen=True, slots=True)
class _Counter:
    tokenizer: Tokenize

    def __call__(self, text: str) -> int:
        found = self.tokenizer(text)
        # A mapping is what some tokenizers make: its entries are the inputs of a model.
        if isinstance(found, Sized) and not isinstance(found, str | Mapping):
            return len(found)
        try:
            # JSON cannot hold NumPy's integers.
            count = index(found)  # type: ignore[arg-type]
        except TypeError:
            count = -1
        if count < 0:
            raise InvalidParameterError(
                "what tokenizer returned",
                found if isinstance(found, int) else type(found).__name__,
                "a list of tokens or an integer of at least 0",
                "Of a tokenizer of Hugging Face pass its encode.",
            )
        return count
