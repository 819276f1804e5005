"""How components check their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel


class CheckedModel(BaseModel):
    """A component that refuses bad settings with the package's own errors."""

    if not TYPE_CHECKING:
        # Pydantic would wrap what model_post_init raises into another error; type checkers
        # read the fields, which a constructor would hide from them.
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self._prepare()

    def _prepare(self) -> None:
        """Refuse settings out of range."""
