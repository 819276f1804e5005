"""Words are remembered by themselves; what a text gives is as if none were."""

from hypothesis import given
from hypothesis import strategies as st

from longrag.models import words
from longrag.models.words import STOPWORDS, content_words, name_words, terms

TEXTS = st.lists(
    st.sampled_from(["The", "harbour", "Anna", "of", "Reyes", "1742", "漢字かな", "don't", "naïve"])
    | st.text("aAé漢 字.-'’1İß", max_size=6)
).map(" ".join)


@given(TEXTS)
def test_content_words_are_the_terms_that_are_no_function_words(text):
    expected = [term for term, (a, b) in terms(text) if text[a:b].casefold() not in STOPWORDS]
    assert content_words(text) == expected


@given(TEXTS)
def test_names_are_made_of_the_terms_of_their_parts(text):
    if text.lower() == text:
        assert name_words(text) == content_words(text)
        return
    expected = []
    for match in words._NAME.finditer(text):
        parts = match.group().split(" ")
        while parts and parts[0].casefold() in STOPWORDS:
            parts = parts[1:]
        for part in parts:
            if not part[0].islower():
                expected += content_words(part)
        expected += [" ".join(parts)] if len(parts) > 1 else []
    assert name_words(text) == expected
