from .modules import Hybrid as Hybrid
from .modules import reranking as reranking
from .modules import search_by_text as search_by_text
from .modules import search_each as search_each
from .settings import balanced_efficiency as balanced_efficiency
from .settings import best_performance as best_performance
from .trace import Trace as Trace
from .workflow import Recipe as Recipe
