"""LongRAG for LangChain: retrievers, transformers and chains that compose with any other.

The example of each component goes on from these lines and from its own import:

```python
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_longrag import ExtractiveChatModel, LocalEmbeddings
from longrag.models import LsaEmbedder

texts = {
    "mill.md": "The mill stands at the [weir](weir.md). It grinds rye.",
    "weir.md": "The weir holds back the river. It was built in 1312.",
    "church.md": "The church has a clock. It strikes at noon.",
}
documents = [Document(text, id=name) for name, text in texts.items()]
embedding = LocalEmbeddings(LsaEmbedder(list(texts.values())))  # or any of LangChain's
store = InMemoryVectorStore.from_documents(documents, embedding)
llm = ExtractiveChatModel()  # or any chat model
```
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
