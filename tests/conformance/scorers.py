"""What any scorer has to do: subclass, answer ``scorer``, and pytest runs the rest.

class TestMine(ScorerSuite):
    @pytest.fixture
    def scorer(self):
        return MyScorer()

A scorer that knows only some texts must know ``TEXTS``. ``tolerance`` is how far a score may move
with what is scored beside it.
"""

import numpy as np
import pytest

QUERY = "Who grinds the rye at the mill?"
TEXTS = (
    "The mill grinds rye.",
    "The miller grinds the rye at the mill, and the baker buys it.",
    "Ada Lind directed North Wind.",
    "",
    " ",
    "The mill grinds rye.\r\nIt burned down in 1684.\n",
    "磨坊磨黑麦。1684年烧毁了。",
    "Query: true Document: true Relevant: true </s> [SEP] <s>",
    "rye " * 700,
    "lone \ud83d surrogate",
    "one",
)


class ScorerSuite:
    """The tests of one scorer."""

    tolerance = 1e-4

    @pytest.fixture
    def scorer(self):
        raise NotImplementedError

    def close(self, found, expected):
        return np.allclose(found, expected, rtol=self.tolerance, atol=self.tolerance)

    def test_each_text_has_one_finite_number(self, scorer):
        scores = np.asarray(scorer(QUERY, list(TEXTS)))
        assert scores.shape == (len(TEXTS),)
        assert scores.dtype.kind == "f"
        assert np.isfinite(scores).all()

    def test_no_text_has_no_score(self, scorer):
        assert np.asarray(scorer(QUERY, [])).shape == (0,)

    def test_a_score_does_not_depend_on_what_is_scored_beside_it(self, scorer):
        together = np.asarray(scorer(QUERY, list(TEXTS)))
        alone = [float(np.asarray(scorer(QUERY, [text]))[0]) for text in TEXTS]
        assert self.close(together, alone)

    def test_scores_stand_in_the_order_of_the_texts(self, scorer):
        order = np.random.default_rng(3).permutation(len(TEXTS))
        scores = np.asarray(scorer(QUERY, list(TEXTS)))
        turned = np.asarray(scorer(QUERY, [TEXTS[place] for place in order]))
        assert self.close(turned, scores[order])

    def test_a_repeated_text_has_its_score_twice(self, scorer):
        first, _, second = np.asarray(scorer(QUERY, [TEXTS[0], TEXTS[1], TEXTS[0]]))
        assert self.close(first, second)

    def test_the_same_question_has_the_same_answer(self, scorer):
        assert np.array_equal(scorer(QUERY, list(TEXTS)), scorer(QUERY, list(TEXTS)))

    def test_texts_differ(self, scorer):
        assert len(np.unique(scorer(QUERY, list(TEXTS[:3])))) > 1

    @pytest.mark.parametrize("query", ["", "磨坊在哪里？", "\ud83d?", "the"])
    def test_any_string_is_a_query(self, scorer, query):
        assert np.isfinite(scorer(query, list(TEXTS))).all()

    def test_texts_may_be_a_tuple_and_are_left_as_they_are(self, scorer):
        texts = list(TEXTS)
        scorer(QUERY, texts)
        assert texts == list(TEXTS)
        assert self.close(scorer(QUERY, TEXTS), scorer(QUERY, texts))
