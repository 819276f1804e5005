from .corpus import CorpusIndex as CorpusIndex
from .tree import TreeIndex as TreeIndex
