"""Limit the tokens that retrieved units have together, and see what is kept."""

from langchain_core.documents import Document

from langchain_longrag import LocalEmbeddings, LongUnitTransformer, MaxPRetriever
from longrag.ingestion import read_documents
from longrag.models import LsaEmbedder, count_tokens

documents = [
    Document(page.text, id=page.id, metadata={"title": page.title, "source": page.id})
    for page in read_documents("docs")
]
nodes = LongUnitTransformer().transform_documents(documents)
embedding = LocalEmbeddings(LsaEmbedder([node.page_content for node in nodes]))
whole = MaxPRetriever(documents=nodes, embedding=embedding, k=2)

for budget in (None, 4000, 1500, 50):
    # The index is shared: nothing is embedded again.
    retriever = MaxPRetriever(index=whole.index, embedding=embedding, k=2, token_budget=budget)
    found = retriever.invoke("What happens when the first turn says nothing?")
    total = sum(count_tokens(document.page_content) for document in found)
    print(f"budget {budget}: {total:,} tokens in {len(found)} units")
    for document in found:
        state = "whole" if document.metadata["complete"] else "cut"
        print(f"  {state}: {', '.join(document.metadata['doc_ids'])}")
