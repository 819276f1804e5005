from .corpus import Change as Change
from .corpus import CorpusIndex as CorpusIndex
from .corpus_order import CorpusOrder as CorpusOrder
from .tree import TreeChange as TreeChange
from .tree import TreeIndex as TreeIndex
