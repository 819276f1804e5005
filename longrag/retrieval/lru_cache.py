"""A cache of what was asked for last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from longrag.locks import Lock

CacheKey = TypeVar("CacheKey", bound=Hashable)
CacheValue = TypeVar("CacheValue")


class LruCache(Generic[CacheKey, CacheValue]):
    """The values of the keys that were asked for last; threads may share it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[CacheKey, CacheValue] = OrderedDict()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[LruCache[CacheKey, CacheValue]], tuple[int]]:
        """Pickle without the values, which are made again when they are needed."""
        return type(self), (self._most,)

    def get(self, key: CacheKey, make: Callable[[], CacheValue]) -> CacheValue:
        """Return the value of a key, made if it is not known any more."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        value = make()
        with self._lock:
            self._known[key] = value
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        return value
