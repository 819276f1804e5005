"""What SmolLM2 writes to every prompt of the package, as `recorded.json` keeps it.

`python -m tests.real_model.record FOLDER [CASE...]` asks the model whose GGUF file is in FOLDER and
writes the file again, or the cases that are named: some minutes of one core. The tests of the
parsers read the file and need no model.
"""

import json
import sys
from pathlib import Path

from longrag.calls import Generate, run
from longrag.evaluation.tuning_data import TuningQuestion, tuning_examples
from longrag.indexing.tree.summaries import LlmSummarizer, SummaryInput
from longrag.ingestion.metadata import describe_chunks
from longrag.ingestion.propositions import proposition_keys
from longrag.prompts import RECIPE_ANSWER, document_fields, fill, quote
from longrag.refinement.compression import compress_abstractive
from longrag.retrieval.queries import decompose, hyde, rewrite
from longrag.retrieval.query_gates import classify_query
from longrag.synthesis.two_turn import read
from longrag.types import Chunk, Document, LongUnit, Member, RetrievedUnit
from tests.real_model.village import PAGES

PATH = Path(__file__).with_name("recorded.json")
MAX_TOKENS = 120
ASKED = [
    ("When did Harrow Mill burn down?", "Harrow Mill"),
    ("Who built the clock of Saint Anne?", "Tobias Wren"),
    ("How deep is Orla Lake?", "Orla Lake"),
    ("what replaced the steam engines of the harrow railway", "Harrow Railway"),
]
COMPARED = "Is Orla Lake deeper than the tower of Saint Anne is high?"
NEEDS = {
    "When did Harrow Mill burn down?": True,
    "Translate into French: The mill grinds rye.": False,
    "Write a short poem about the sea.": False,
}


def chunk(title, text=None):
    text = PAGES[title] if text is None else text
    return Chunk(title, title, title, title, text, 0, len(text), 0, len(text))


def retrieved(title):
    unit = LongUnit(title, PAGES[title], (Member(title, title, 0, 0, len(PAGES[title])),), 0)
    return RetrievedUnit(unit, 1.0, chunk(title))


def cases():
    """Yield a name and a flow for each case."""
    for number, (question, title) in enumerate(ASKED):
        yield f"one_turn/{number}", read(question, [retrieved(title)])
    for number, (question, title) in enumerate(ASKED[:2]):
        other = next(page for page in PAGES if page != title)
        units = [retrieved(page) for page in (title, other)]
        context = document_fields([(title, PAGES[title])])
        yield (
            f"summary/{number}",
            LlmSummarizer()(
                [SummaryInput(PAGES[page], page) for page in (title, other)], sources=()
            ),
        )
        yield f"compress/{number}", compress_abstractive(question, [PAGES[title]], max_words=30)
        yield f"hyde/{number}", hyde(question)
        yield f"rewrite/{number}", rewrite(question)
        yield f"decompose/{number}", decompose(question)
        yield f"two_turns/{number}", read(question, units, one_turn_max_tokens=0)
        prompt = fill(RECIPE_ANSWER, context=context, question=quote(question))
        yield f"recipe/{number}", one(prompt)
        document = Document(title, PAGES[title], title)
        yield f"propositions/{number}", proposition_keys([document])
        yield f"metadata/{number}", describe_chunks([chunk(title)])
    yield "unanswerable/0", read("Who wrote the song Yellow Rain?", [retrieved("Selm")])
    yield "rewrite/long", rewrite("hi there, can u tell me plz who the bridge enginer was? thx")
    yield "decompose/compared", decompose(COMPARED)
    yield "decompose/hop", decompose("Into which lake flows the river that Ada Lind bridged?")
    for number, query in enumerate(NEEDS):
        yield f"classify/{number}", classify_query(query)
    gold = TuningQuestion(ASKED[0][0], ("1684",), (PAGES["Harrow Mill"],))
    pool = [PAGES["Orla Lake"]]
    (example,) = tuning_examples([gold], contexts="gold+random", random_state=0, pool=pool)
    yield "tuning/gold+random", one(example.prompt)


def one(prompt):
    answers = yield (Generate(prompt),)
    return answers[0]


def record(flow, writer):
    replies = []

    def answer(request):
        written = writer.write([{"role": "user", "content": request.prompt}], max_tokens=MAX_TOKENS)
        text = "".join(written.pieces)
        replies.append({"reply": text, "finish_reason": written.finish_reason})
        return text

    try:
        outcome = repr(run(flow, answer))
    except Exception as error:  # noqa: BLE001
        outcome = repr(error)
    return replies, outcome


def main(folder, *names):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tests.real_model.conftest import FILE
    from tests.real_model.writer import ModelWriter

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32)
    writer = ModelWriter(model.eval(), tokenizer)
    recorded = json.loads(PATH.read_text("utf-8")) if names and PATH.exists() else {}
    for name, flow in cases():
        if names and not any(name.startswith(each) for each in names):
            continue
        recorded[name], outcome = record(flow, writer)
        for one_reply in recorded[name]:
            print(f"== {name} ({one_reply['finish_reason']})\n{one_reply['reply']}")  # noqa: T201
        print(f"-> {outcome}", flush=True)  # noqa: T201
        text = json.dumps(recorded, ensure_ascii=False, indent=1, sort_keys=True)
        PATH.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
