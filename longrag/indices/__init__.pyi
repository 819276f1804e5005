from .corpus import CorpusIndex as CorpusIndex
from .corpus_order import CorpusOrder as CorpusOrder
from .tree import TreeIndex as TreeIndex
