"""Every kind of file that is saved, in every version there was, and what it must answer."""

from tests.formats import core, langchain, llama_index

CASES = [*core.CASES, *llama_index.CASES, *langchain.CASES]
