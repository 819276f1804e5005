"""Stream the long answer first and the short answer after it, in both frameworks."""

from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from llama_index.core.schema import NodeWithScore, TextNode

from langchain_longrag import ExtractiveChatModel, create_longrag_chain
from llama_index_longrag import ExtractiveLLM, TwoTurnSynthesizer

TEXT = "The mill grinds rye. It burned down in 1684. Four years later it was rebuilt of stone."
QUESTION = "When did the mill burn down?"

print("LlamaIndex")
# Zero takes two turns, though this context is short enough for one.
reader = TwoTurnSynthesizer(llm=ExtractiveLLM(), streaming=True, one_turn_max_tokens=0)
response = reader.synthesize(QUESTION, nodes=[NodeWithScore(node=TextNode(text=TEXT), score=1.0)])
print("  long: ", end="")
for token in response.long_answer_gen():
    print(token.replace("\n", " "), end="|")
print("\n  short: ", end="")
for token in response.response_gen:
    print(token, end="|")

print("\nLangChain")
chain = create_longrag_chain(
    RunnableLambda(lambda inputs: [Document(TEXT)]),  # any retriever
    ExtractiveChatModel(),
    one_turn_max_tokens=0,
)
last = ""
for piece in chain.stream({"input": QUESTION}):
    for key in ("long_answer", "answer"):
        if piece.get(key):
            if key != last:
                print("\n" * bool(last) + f"  {key}: ", end="")
                last = key
            print(piece[key].replace("\n", " "), end="|")
print()
