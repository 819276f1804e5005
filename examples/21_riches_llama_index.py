"""Answer from evidence that is decoded from the corpus in LlamaIndex: an engine, a tool, an LLM.

Uses the small model of `20_riches.py`, which remembers an outdated state of an invented world; it
is trained into the folder .riches if it is not there yet.
"""

import sys
from pathlib import Path

import torch
from llama_index.core import Document
from llama_index.core.base.llms.types import CitationBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.schema import QueryBundle
from llama_index.core.tools import QueryEngineTool

sys.path.insert(0, str(Path(__file__).parent.parent))

from examples.riches_world.train import load_or_train
from examples.riches_world.world import ask_questions, make_world
from llama_index_longrag import RichesLLM, RichesQueryEngine
from longrag.decoding import RichesDecoder
from longrag.indexing import KeyIndex
from longrag.models import TransformersLanguageModel

torch.set_num_threads(1)  # half a million parameters are no work for two
print("The model is trained where the folder .riches does not hold it yet: two minutes or so.")
model, tokenizer = load_or_train()
language_model = TransformersLanguageModel(model, tokenizer)

world = make_world(0)
documents = [
    Document(text=page.text, id_=page.id, metadata={"title": page.title})
    for page in world.documents
]
# This world brings its propositions along. RichesQueryEngine.from_documents makes the keys of any
# corpus: its sentences, paragraphs or titles, or propositions that any LlamaIndex LLM writes.
index = KeyIndex.from_keys(world.keys, tokenizer=language_model.tokenizer)
decoder = RichesDecoder(language_model, index, max_new_tokens=96, documents=world.documents)

# The model was taught this form; a larger one takes the worked examples that are the default.
prompt = "question: {question}\npassage:"
engine = RichesQueryEngine(decoder, documents, prompt=prompt)
outdated = [one for one in ask_questions(world, 40, hops=1) if one.stale][:3]
for question in outdated:
    response = engine.query(question.text)
    print(f"\n{question.text}\n  {response} (was {question.stale} when the model was trained)")
    for source in response.source_nodes:
        (quote,) = source.node.metadata["quotes"]
        print(f"  << {quote['text']} >>")
        place = f"{source.node.ref_doc_id}[{quote['start_char']}:{quote['end_char']}]"
        print(f"     stands for {place}: {source.node.get_content()!r}")

streaming = RichesQueryEngine(decoder, documents, prompt=prompt, streaming=True)
(question,) = ask_questions(world, 1, hops=2)
response = streaming.query(question.text)
print(f"\n{question.text}\n ", end="")
for piece in response.trace_gen():
    print(piece.replace("\n", "\n  "), end="")
print(f"\n  so: {response}, by {len(response.source_nodes)} passages")

print(f"\nPassages for: {outdated[0].text}")
for found in engine.retrieve(QueryBundle(outdated[0].text)):
    print(f"  {found.score:7.2f}  {found.node.ref_doc_id}: {found.node.get_content()}")

tool = QueryEngineTool.from_defaults(engine, name="world", description="Knows the world.")
print(f"\nWhat an agent gets from {tool.metadata.name}: {tool.call(outdated[1].text).content}")

llm = RichesLLM(
    decoder=decoder,
    documents=documents,
    messages_to_prompt=lambda messages: prompt.format(question=messages[-1].content),
)
message = llm.chat([ChatMessage(outdated[2].text)]).message
print(f"\nA message of {llm.metadata.model_name.partition('#')[0]}:{message.content}")
for block in message.blocks:
    if isinstance(block, CitationBlock):
        print(f"  cites {block.source} ({block.title}): {block.cited_content.text!r}")
