"""Decode evidence from the corpus in LangChain: a chat model with citations, a retriever, a chain.

Uses the small model of `20_riches.py`, which remembers an outdated state of an invented world; it
is trained into the folder .riches if it is not there yet.
"""

import sys
from pathlib import Path

import torch
from langchain_core.documents import Document
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import create_retriever_tool

sys.path.insert(0, str(Path(__file__).parent.parent))

from examples.riches_world.train import load_or_train
from examples.riches_world.world import ask_questions, make_world
from langchain_longrag import ChatRiches, RichesRetriever
from longrag.decoding import RichesDecoder
from longrag.indexing import KeyIndex
from longrag.models import TransformersLanguageModel

torch.set_num_threads(1)  # half a million parameters are no work for two
print("The model is trained where the folder .riches does not hold it yet: two minutes or so.")
model, tokenizer = load_or_train()
language_model = TransformersLanguageModel(model, tokenizer)

world = make_world(0)
documents = [
    Document(page.text, id=page.id, metadata={"title": page.title}) for page in world.documents
]
# This world brings its propositions along. ChatRiches.from_documents makes the keys of any corpus:
# its sentences, paragraphs or titles, or propositions that a language model writes.
index = KeyIndex.from_keys(world.keys, tokenizer=language_model.tokenizer)
decoder = RichesDecoder(language_model, index, max_new_tokens=96, documents=world.documents)

# The model was taught this form; a larger one takes the worked examples that are the default.
prompt = "question: {question}\npassage:"
chat = ChatRiches(decoder=decoder, documents=documents, prompt=prompt)
(question,) = ask_questions(world, 1, hops=2)

print(f"\n{question.text}\n ", end="")
message = None
for chunk in chat.stream(question.text):
    print(chunk.text.replace("\n", "\n  "), end="")
    message = chunk if message is None else message + chunk
print()
for citation in message.content_blocks[0]["annotations"]:
    place = citation["extras"]
    print(
        f"  characters {citation['start_index']} to {citation['end_index']} are evidence of", end=""
    )
    print(f" {place['doc_id']}[{place['start']}:{place['end']}]: {citation['cited_text']!r}")

chain = (
    ChatPromptTemplate.from_template("{question}")
    | ChatRiches(decoder=decoder, documents=documents, prompt=prompt, output="answer")
    | StrOutputParser()
)
questions = [one for one in ask_questions(world, 40, hops=1) if one.stale][:3]
answers = chain.batch([{"question": question.text} for question in questions])
for question, answer in zip(questions, answers, strict=True):
    print(f"\n{question.text}\n  {answer} (was {question.stale} when the model was trained)")

retriever = RichesRetriever(decoder=decoder, documents=documents, prompt=prompt, k=3)
print(f"\nPassages for: {questions[0].text}")
for found in retriever.invoke(questions[0].text):
    print(f"  {found.metadata['doc_id']}: {found.page_content}")

# A chat model that quotes calls no tools; as a tool it serves an agent whose model does.
tool = create_retriever_tool(retriever, "look_up", "Finds passages that answer a question.")
print(f"\nWhat an agent gets from {tool.name}: {len(tool.invoke(questions[1].text))} characters")
