"""Answer a question about a folder of linked documents, with its sources, in LlamaIndex."""

from llama_index.core import Document
from llama_index.core.query_engine import RetrieverQueryEngine

from llama_index_longrag import (
    ExtractiveLLM,
    LocalEmbedding,
    LongUnitNodeParser,
    MaxPRetriever,
    TwoTurnSynthesizer,
)
from longrag.ingestion import read_documents
from longrag.models import LsaEmbedder

# Any reader of LlamaIndex will do. A path in the metadata lets relative links be resolved.
documents = [
    Document(id_=page.id, text=page.text, metadata={"title": page.title, "path": page.id})
    for page in read_documents("docs")
]
nodes = LongUnitNodeParser()(documents)

llm = ExtractiveLLM()  # put any LlamaIndex LLM here
embed_model = LocalEmbedding(embedder=LsaEmbedder([node.text for node in nodes]))  # or any other
engine = RetrieverQueryEngine(
    retriever=MaxPRetriever(nodes=nodes, embed_model=embed_model, similarity_top_k=4),
    response_synthesizer=TwoTurnSynthesizer(llm=llm),
)

for question in ("What is MaxP?", "What happens when the first turn says nothing?"):
    response = engine.query(question)
    print(f"Q: {question}\nA: {response}")
    print("Long answer:", response.metadata["long_answer"].splitlines()[0])
    for found in response.source_nodes:
        best = found.node.metadata["best_chunk"]
        print(f"  {found.score:.3f}  best in {best['doc_id']} at {best['doc_start']}", end="")
        print(f", read with {len(found.node.metadata['doc_ids'])} documents")
    print()
