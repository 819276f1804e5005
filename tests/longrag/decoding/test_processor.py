"""The logits processor in transformers' own generate(), against searches that know the grammar."""

import math

import numpy as np
import pytest

from longrag.decoding.beam import beam
from longrag.decoding.constraint import Constraint
from longrag.decoding.driver import drive, finish
from longrag.decoding.processor import RichesLogitsProcessor
from longrag.errors import InvalidParameterError
from longrag.indexing import KeyIndex
from tests.tiny_models import CharacterTokenizer, TableModel, tiny_llama

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

TOKENIZER = CharacterTokenizer("ab []")
END, OPEN, CLOSE = 5, 3, 4
KEYS = ["a", "ab", "abb", "ba", "b a"]
PROMPT = [0, 1, 2]
SEEDS = range(10)


def constraint(keys=KEYS, **own):
    index = KeyIndex.from_keys(keys, tokenizer=TOKENIZER, markers=("[", "]"))
    return Constraint(index, TOKENIZER, **{"markers": ("[", "]"), "end_ids": [END], **own})


def network(seed, *, end=4.0):
    ids = {"eos_token_id": END, "pad_token_id": END, "bos_token_id": 0}
    model = tiny_llama(6, seed, initializer_range=0.3, **ids)
    # Spans are opened and outputs ended before they run out of tokens.
    model.lm_head.bias = torch.nn.Parameter(torch.tensor([0.0, 0.0, 0.0, 2.5, 0.0, end]))
    return model


def generated(model, processor, prompts=(PROMPT,), *, mask=None, tokens=12, **own):
    """Run generate(), and return its rows and their scores, if it has any."""
    ids = torch.tensor(prompts)
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids) if mask is None else torch.tensor(mask),
        logits_processor=[processor],
        max_new_tokens=tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **own,
    )
    scores = getattr(found, "sequences_scores", None)
    return found.sequences.tolist(), None if scores is None else scores.tolist()


def logprobs(model, tokens):
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0, -1]
    return torch.log_softmax(logits.double(), 0).numpy()


def greedy(model, grammar, tokens=12):
    """Follow the best token that may follow, by hand, and open the spans that are owed."""
    place, found, opening = grammar.start(), [], []
    while len(found) < tokens:
        if opening:
            found.append(opening.pop(0))
            place = grammar.advance(place, found[-1])
            continue
        moves = grammar.moves(place)
        allowed = np.setdiff1d(np.arange(6), moves.banned)
        if moves.allowed is not None:
            allowed = moves.allowed
        if not len(allowed):
            return [*found, END]
        token = int(allowed[logprobs(model, [*PROMPT, *found])[allowed].argmax()])
        if moves.allowed is None and grammar.must_open(place, token):
            opening = list(grammar.opening_ids)
            continue
        found.append(token)
        if token == END:
            break
        place = grammar.advance(place, token)
    return found


def texts(processor, row):
    """Return the texts of the spans of an output."""
    own = row[len(PROMPT) :]
    return [TOKENIZER.decode(own[span.start : span.end]) for span in processor.spans(row)]


@pytest.mark.parametrize("adaptive", [True, False])
def test_greedy_outputs_follow_the_best_token_that_may_follow(adaptive):
    grammar = constraint(min_spans=1, max_spans=3)
    spans = []
    for seed in SEEDS:
        model = network(seed)
        processor = RichesLogitsProcessor(grammar, adaptive=adaptive)
        (row,), _ = generated(model, processor)
        assert row[len(PROMPT) :] == greedy(model, grammar)
        spans += texts(processor, row)
    assert len(spans) > 5
    assert set(spans) <= {f" {key}" for key in KEYS}


@pytest.mark.parametrize("adaptive", [True, False])
def test_beams_find_what_the_search_of_this_package_finds(adaptive):
    grammar = constraint(min_spans=1, max_spans=2)
    compared = 0
    for seed in SEEDS:
        model = network(seed)
        processor = RichesLogitsProcessor(grammar, adaptive=adaptive)
        (row,), (score,) = generated(model, processor, num_beams=4, length_penalty=0.0)
        own = row[len(PROMPT) :]
        table = TableModel(TOKENIZER, lambda t, m=model: np.exp(logprobs(m, list(t))))
        searched = beam(
            grammar,
            prompt=0,
            end_ids=frozenset([END]),
            beam_size=4,
            adaptive=adaptive,
            max_new_tokens=12,
        )
        ((best,),) = (outcome.hypotheses for outcome in finish(drive(table, [PROMPT], [searched])))
        # generate() takes what ran out of tokens for finished.
        if END in own:
            compared += 1
            assert own[: own.index(END)] == list(best.tokens)
            assert score == pytest.approx(best.score, abs=1e-3)
            assert processor.spans(row) == best.place.spans
            assert best.place.spans
    assert compared >= 3


def test_prompts_of_one_batch_do_not_meet():
    grammar = constraint(min_spans=1, max_spans=2)
    for seed in SEEDS[:4]:
        model = network(seed)
        settings = {"num_beams": 3, "length_penalty": 0.0}
        alone = [
            generated(model, RichesLogitsProcessor(grammar), [prompt], **settings)[0][0]
            for prompt in (PROMPT, [1, 1, 1])
        ]
        together, _ = generated(
            model, RichesLogitsProcessor(grammar), [PROMPT, [1, 1, 1]], **settings
        )
        for row, own in zip(together, alone, strict=True):
            assert row[: len(own)] == own
            assert set(row[len(own) :]) <= {END}


def test_a_stop_string_ends_an_output_and_costs_nothing():
    grammar = constraint(stop=["a", "b"], max_spans=0)
    ended = 0
    for seed in SEEDS:
        model = network(seed, end=-4.0)
        (row,), (score,) = generated(
            model, RichesLogitsProcessor(grammar), num_beams=2, length_penalty=0.0
        )
        text = TOKENIZER.decode(row[len(PROMPT) :])
        assert not {"a", "b"} & set(text[:-1])
        if text.endswith(("a", "b")):
            ended += 1
            own = row[len(PROMPT) :]
            own = own[: own.index(END)]
            expected = sum(
                logprobs(model, [*PROMPT, *own[:at]])[token] for at, token in enumerate(own)
            )
            assert score == pytest.approx(expected, abs=1e-3)
    assert ended >= 5


def test_an_output_that_is_stuck_ends_alone_and_loses_against_others():
    model = network(0)
    grammar = constraint(["abba", "b"], max_span_tokens=2)
    processor = RichesLogitsProcessor(grammar)
    tokens = torch.tensor([[*PROMPT]])
    for token in (OPEN, 2, 0):
        processor(tokens, torch.zeros(1, 6))
        tokens = torch.cat([tokens, torch.tensor([[token]])], 1)
    kept = processor(tokens, torch.zeros(1, 6))
    assert kept[0, :END].isinf().all()
    assert float(kept[0, END]) == pytest.approx(-1e9)
    grammar = constraint(["abba", "b"], max_span_tokens=2, min_spans=1, max_spans=1)
    (row,), (score,) = generated(
        model, RichesLogitsProcessor(grammar), num_beams=4, length_penalty=0.0, tokens=30
    )
    assert score > -1e8
    assert texts_of_row(grammar, row) == [" b"]


def texts_of_row(grammar, row):
    processor = RichesLogitsProcessor(grammar)
    processor(torch.tensor([PROMPT]), torch.zeros(1, 6))
    return texts(processor, row)


def asked(processor, tokens, scores):
    """Ask a processor about the tokens after a prompt, one after the other."""
    for end in range(len(tokens) + 1):
        ids = torch.tensor([[*PROMPT, *tokens[:end]]])
        kept = processor(ids, torch.tensor([scores]))
    return {id_: value for id_, value in enumerate(kept[0].tolist()) if value != -math.inf}


def test_free_text_keeps_its_best_token_or_all_and_scores_stay_as_they_are():
    scores = [-1.0, -2.0, -3.0, -4.0, -5.0, -0.5, -0.1]
    adaptive, wide = (
        RichesLogitsProcessor(constraint(min_spans=1), adaptive=own) for own in (True, False)
    )
    # The last id has no text.
    assert asked(adaptive, [], [*scores[:5], -2.5, -0.1]) == pytest.approx({0: -1.0})
    wide_scores = [*scores[:5], -2.5, -0.1]
    # The end is not the best, and would leave out the span that is owed.
    assert asked(wide, [], wide_scores) == pytest.approx(dict(enumerate(scores[:5])))
    for own in (adaptive, wide):
        own.reset()
        # The end is the best: the opening marker " [" takes its place.
        assert asked(own, [2], scores) == pytest.approx({OPEN: -4.0})
        own.reset()
    given = torch.tensor([scores])
    before = given.clone()
    adaptive.reset()
    adaptive(torch.tensor([PROMPT]), given)
    assert torch.equal(given, before)


def test_of_ways_to_close_the_best_is_kept_and_what_goes_on_stays():
    class Wide(CharacterTokenizer):
        """The last id but one closes too, with the space before it."""

        def decode(self, ids):
            return "".join(" ]" if id_ == 5 else super(Wide, self).decode([id_]) for id_ in ids)

        def encode(self, text):
            return super().encode(text)

    tokenizer = Wide("ab []", extra=2)
    index = KeyIndex.from_token_ids([[2, 0], [2, 0, 1]], vocab_size=7)
    grammar = Constraint(index, tokenizer, markers=("[", "]"), end_ids=[6])
    processor = RichesLogitsProcessor(grammar)
    # " " begins the marker as the tokenizer writes it, "]" and " ]" are one token each.
    scores = [-1.0, -2.0, -9.0, -4.0, -3.0, -2.5, -0.1]
    assert asked(processor, [3, 2, 0], scores) == pytest.approx({1: -2.0, 5: -2.5})
    processor.reset()
    assert asked(processor, [3, 2, 0], [-1.0, -2.0, -0.2, -4.0, -3.0, -2.5, -0.1]) == (
        pytest.approx({1: -2.0, 2: -0.2})
    )


def test_rows_that_cannot_have_been_written_are_left_without_a_chance():
    processor = RichesLogitsProcessor(constraint(max_spans=0), adaptive=False)
    processor(torch.tensor([PROMPT, PROMPT]), torch.zeros(2, 6))
    rows = torch.tensor([[*PROMPT, OPEN], [*PROMPT, 0]])
    kept = processor(rows, torch.full((2, 6), -1.0))
    assert kept[0].tolist() == pytest.approx([*[-math.inf] * 5, -1e9])
    assert kept[1].tolist() == pytest.approx([-1.0, -1.0, -1.0, -math.inf, -1.0, -1.0])
    # The dead row's beam is filled from the other one.
    rows = torch.tensor([[*PROMPT, 0, 1], [*PROMPT, OPEN, 0]])
    kept = processor(rows, torch.full((2, 6), -1.0))
    assert kept[0].tolist() == pytest.approx([-1.0, -1.0, -1.0, -math.inf, -1.0, -1.0])
    assert kept[1, :END].isinf().all()


def test_half_precision_scores_stay_in_their_type():
    processor = RichesLogitsProcessor(constraint())
    kept = processor(torch.tensor([PROMPT]), torch.zeros(1, 6, dtype=torch.bfloat16))
    assert kept.dtype == torch.bfloat16
    kept = processor(torch.tensor([[*PROMPT, END]]), torch.zeros(1, 6, dtype=torch.bfloat16))
    assert kept[0].tolist() == pytest.approx([*[-math.inf] * 5, -1e9], rel=0.01)


def test_a_processor_is_for_one_call_and_needs_an_end():
    processor = RichesLogitsProcessor(constraint())
    with pytest.raises(InvalidParameterError, match="with this processor first"):
        processor.spans(PROMPT)
    model = network(0)
    first, _ = generated(model, processor)
    with pytest.raises(InvalidParameterError, match="Use a new processor for each call"):
        generated(model, processor)
    processor.reset()
    assert generated(model, processor)[0] == first
    with pytest.raises(InvalidParameterError, match="constraint must be a constraint with end_ids"):
        RichesLogitsProcessor(constraint(end_ids=[]))
