import pytest

from longrag.errors import InvalidParameterError
from longrag.models.tokens import count_tokens

ENGLISH = (
    "LongRAG groups related documents into long units of about four thousand tokens, ranks the "
    "units by their best chunk, and gives the first few of them to a reader with a long context."
)
MARKDOWN = "## Setup\n\n- Run `pip install x`.\n- See [the guide](guide.md) first.\n\n| a | b |\n"
CHINESE = "北京是中华人民共和国的首都，人口超过两千万。长上下文阅读器回答问题。"
JAPANESE = "東京は日本の首都です。私は昨日、友達と一緒に映画を見に行きました。"
KOREAN = "서울은 대한민국의 수도이자 최대 도시이다. 저는 어제 친구와 함께 영화를 보러 갔습니다."
RUSSIAN = "Москва является столицей России и крупнейшим по численности населения городом."


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        (" \t\r\n\u3000", 0),
        ("a", 1),
        ("12345678", 1),
        ("123456789", 2),
        ("snake_case", 2),
        ("naïve café", 2),
        ("Hello, world!", 4),
        ("中文", 2),
        ("中文abc中", 4),
        ("「你好。」", 5),
        ("カタカナ", 4),
        ("ｶﾅ", 2),
        ("서울", 2),
        ("\U00020000\U0002a6df", 2),
        ("Москва", 3),
        ("GPT-4o很好", 5),
        ("\ud800\x00", 2),
    ],
)
def test_tokens_are_counted_by_the_rule(text, tokens):
    assert count_tokens(text) == tokens


@pytest.mark.parametrize("gap", [" ", "\n\n", "\r\n\t"])
def test_counts_of_texts_joined_by_white_space_add_up(gap):
    parts = [ENGLISH, MARKDOWN, CHINESE, RUSSIAN]
    assert count_tokens(gap.join(parts)) == sum(count_tokens(part) for part in parts)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        (ENGLISH, 0.9, 1.15),
        (MARKDOWN, 0.9, 1.2),
        (CHINESE, 0.85, 1.1),
        (JAPANESE, 0.85, 1.15),
        (KOREAN, 0.7, 1.1),
        (RUSSIAN, 0.9, 1.2),
    ],
)
def test_counts_are_close_to_those_of_cl100k(text, low, high):
    utils = pytest.importorskip("llama_index.core.utils", reason="LlamaIndex brings cl100k")
    assert low < count_tokens(text) / len(utils.get_tokenizer()(text)) < high


def test_a_million_characters_without_a_break_are_counted():
    assert count_tokens("a" * 1_000_000) == 125_000
    assert count_tokens("中" * 1_000_000) == 1_000_000


@pytest.mark.parametrize("text", [None, b"bytes", 3])
def test_what_is_no_string_is_refused(text):
    with pytest.raises(InvalidParameterError, match="text must be a string"):
        count_tokens(text)
