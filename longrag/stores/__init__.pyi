from .search import Listed as Listed
from .search import Ranked as Ranked
from .search import retrieve_from_store as retrieve_from_store
