from .search import retrieve_from_store as retrieve_from_store
