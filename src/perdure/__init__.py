"""Perdure: a durable runtime for coding agents. `import perdure` stays cheap: names load when they are used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.api import Answer, Budget, Session, open

__version__ = "0.1.0"
__all__ = ["Answer", "Budget", "Session", "open"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("perdure.api"), name)
    raise AttributeError(f"module 'perdure' has no attribute '{name}'")
