"""Rank whole documents of a VectorStoreIndex that exists already, in one line."""

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter

from llama_index_longrag import LocalEmbedding, MaxPRetriever
from longrag.ingestion import read_documents
from longrag.models import LsaEmbedder

pages = read_documents("docs")
documents = [Document(id_=page.id, text=page.text) for page in pages]
embed_model = LocalEmbedding(embedder=LsaEmbedder([page.text for page in pages]))
index = VectorStoreIndex.from_documents(
    documents,
    transformations=[SentenceSplitter(chunk_size=128, chunk_overlap=0)],
    embed_model=embed_model,
)
question = "How are units cut to a token budget?"

print("Four chunks, as before:")
for found in index.as_retriever(similarity_top_k=4).retrieve(question):
    print(f"  {found.score:.3f}  {found.node.ref_doc_id}")

retriever = MaxPRetriever(index=index, unit_key="ref_doc_id", similarity_top_k=4)

print("Four documents, each by its best chunk:")
for found in retriever.retrieve(question):
    print(f"  {found.score:.3f}  {found.node.node_id}, {len(found.node.text)} characters")
