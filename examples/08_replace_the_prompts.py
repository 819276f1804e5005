"""Replace the prompts of the reader the way each framework replaces prompts."""

from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from llama_index.core.llms import MockLLM
from llama_index.core.prompts import PromptTemplate
from llama_index.core.schema import NodeWithScore, TextNode

from langchain_longrag import create_two_turn_reader
from llama_index_longrag import TwoTurnSynthesizer

TEXT = "The mill grinds rye."
QUESTION = "What does the mill grind?"

reader = TwoTurnSynthesizer(llm=MockLLM())
print("LlamaIndex prompts:", ", ".join(sorted(reader.get_prompts())))
reader.update_prompts(
    {"extract": PromptTemplate("{context_str}\n\nIn one word of German: {query_str}")}
)
# MockLLM repeats its prompt, which shows what a model is sent.
response = reader.synthesize(QUESTION, nodes=[NodeWithScore(node=TextNode(text=TEXT), score=1.0)])
print("\n".join(f"  | {line}" for line in str(response).splitlines()))

print("LangChain prompt, with a further slot:")
prompt = ChatPromptTemplate.from_messages(
    [("system", "Answer in {language}."), ("human", "{context}\n\n{input}")]
)
echo = RunnableLambda(lambda sent: sent.to_string())  # stands in for a model, as above
reader = create_two_turn_reader(echo, extract_prompt=prompt)
answer = reader.invoke({"input": QUESTION, "context": [Document(TEXT)], "language": "German"})
print("\n".join(f"  | {line}" for line in answer.splitlines()))
