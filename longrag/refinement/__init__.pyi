from .compression import compress_abstractive as compress_abstractive
from .compression import compress_extractive as compress_extractive
from .repeats import put_off_repeats as put_off_repeats
from .reranking import repack as repack
from .reranking import rerank as rerank
from .self_information import selective_context as selective_context
