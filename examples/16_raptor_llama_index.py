"""Ask a tree of summaries over the manual in LlamaIndex, and see where each answer comes from.

Runs without a key: summaries quote sentences. Give `llm=` your own and leave `summarizer` out for
written ones.
"""

from llama_index.core import Document

from llama_index_longrag import ExtractiveLLM, LocalEmbedding, RaptorIndex, TwoTurnSynthesizer
from longrag.ingestion import read_documents
from longrag.models import LsaEmbedder
from longrag.retrieval import TreeSearchSettings

pages = read_documents("docs")
documents = [Document(id_=p.id, text=p.text, metadata={"title": p.title}) for p in pages]
paragraphs = [paragraph for p in pages for paragraph in p.text.split("\n\n")]
embed_model = LocalEmbedding(embedder=LsaEmbedder(paragraphs))

estimate = RaptorIndex.estimate(documents)
print(f"{estimate.leaves} leaves: a language model would be asked {estimate.llm_calls} times, and")
print(f"  read {estimate.prompt_tokens:,} and write {estimate.completion_tokens:,} tokens")

index = RaptorIndex.from_documents(documents, embed_model=embed_model, summarizer="extractive")
statistics = index.statistics()
print("nodes by level, leaves first:", *statistics.nodes)
print(f"a summary has {statistics.all_levels.compression:.0%} of its children's tokens")

llm = ExtractiveLLM()  # or your own
engine = index.as_query_engine(
    llm=llm,
    response_synthesizer=TwoTurnSynthesizer(llm=llm),  # or that of any other index
    token_budget=1000,
    search=TreeSearchSettings(redundancy=0.5),
)
text_of = {page.id: page.text for page in pages}
for question in (
    "How many tokens does a long unit hold by default?",
    "Which class groups linked documents in LlamaIndex?",
):
    response = engine.query(question)
    print(f"\n{question} {response}")
    for source in response.source_nodes[:4]:
        leaves, pages_read = source.metadata["leaves"], source.metadata["doc_ids"]
        kind = "leaf" if source.metadata["level"] == 0 else f"summary of {len(leaves)} leaves"
        print(f"  {source.score:.3f}  {kind} of {pages_read[0]} and {len(pages_read) - 1} others")
        for leaf in leaves[:2]:
            passage = text_of[leaf["doc_id"]][leaf["start"] : leaf["end"]]
            place = f"{leaf['doc_id']}[{leaf['start']}:{leaf['end']}]"
            print(f"         {place:<28} {passage[:50]!r}")
