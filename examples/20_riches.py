"""Answer from a corpus that contradicts the model: `make demo-riches`.

Trains half a million parameters on an outdated state of a small invented world, about two minutes
on one core, once. By itself the model repeats what it remembers; decoded with RICHES, the same
weights answer from the corpus and say where it stands. At last, two ways in which that fails.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))


from examples.riches_world.answering import MAX_NEW_TOKENS, constrained, share, unconstrained
from examples.riches_world.train import load_or_train
from examples.riches_world.world import ask_questions, make_world, without_answers
from longrag.decoding import RichesDecoder
from longrag.indexing import KeyIndex
from longrag.models import TransformersLanguageModel

SHOWN, COUNTED = 2, 40

torch.set_num_threads(1)  # half a million parameters are no work for two
print("The model is trained where the folder .riches does not hold it yet: two minutes or so.")
model, tokenizer = load_or_train()
language_model = TransformersLanguageModel(model, tokenizer)


def decoder_over(world, keys):
    index = KeyIndex.from_keys(keys, tokenizer=language_model.tokenizer)
    return RichesDecoder(
        language_model, index, max_new_tokens=MAX_NEW_TOKENS, documents=world.documents
    )


def tell(name, graded):
    right = share([one.correct for one in graded])
    print(f"  {name:<40} {right:4.0%} right")


world = make_world(0)
decoder = decoder_over(world, world.keys)
text_of = {document.id: document.text for document in world.documents}
for hops in (1, 2):
    questions = ask_questions(world, COUNTED, hops=hops)
    alone = unconstrained(model, tokenizer, questions)
    quoting = constrained(decoder, questions)
    told = [n for n, one in enumerate(alone) if one.stale and quoting[n].correct]
    for number in told[:SHOWN]:
        print(f"\n{questions[number].text}")
        print(f"  remembered: {alone[number].answer}")
        print(f"  decoded:    {quoting[number].answer}")
        for span in quoting[number].spans:
            source = span.sources[0]
            passage = text_of[source.doc_id][source.start : source.end]
            print(f"    << {span.text} >>")
            print(f"       {source.doc_id}[{source.start}:{source.end}] {passage!r}")
    outdated = [one for one in alone if one.question.stale]
    print(f"\n{len(questions)} questions of {hops} hop{'s' * (hops > 1)}")
    tell("by itself", alone)
    print(f"    {sum(one.stale for one in outdated)} of {len(outdated)} answers were right once")
    tell("decoded from the corpus", quoting)

print("\nWhere it fails, on the questions of one hop:")
questions = ask_questions(world, COUNTED, hops=1)
absent = constrained(decoder_over(world, without_answers(world, questions)), questions)
tell("keys that are not in the corpus", absent)
print(f"    it quotes another fact instead: {absent[0].text.strip()!r}")
turned = make_world(0, object_first=0.3)
reworded = constrained(decoder_over(turned, turned.keys), ask_questions(turned, COUNTED, hops=1))
tell("three in ten facts begin with the object", reworded)
