"""Perdure: a durable runtime for coding agents. `import perdure` stays cheap: names load when they are used. docs/api.md says what they mean."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.api import (
        AfterCall,
        Answer,
        Applied,
        BeforeCall,
        BeforeRequest,
        Budget,
        Collected,
        Conflict,
        Event,
        Hook,
        Hooks,
        Notice,
        OnAnswer,
        Opened,
        OutputShown,
        Recorded,
        Ruling,
        Session,
        TextShown,
        Tool,
        from_function,
        open,
    )
    from perdure.record.errors import (
        CorruptLogError,
        NewerLogError,
        PerdureError,
        PermanentError,
        RootRefusedError,
        SessionBusyError,
        StaleEpochError,
        StoreFullError,
        StoreLockedError,
        UncertainCommitError,
        UsageError,
    )

__version__ = "0.1.0"
__all__ = [
    "AfterCall",
    "Answer",
    "Applied",
    "BeforeCall",
    "BeforeRequest",
    "Budget",
    "Collected",
    "Conflict",
    "CorruptLogError",
    "Event",
    "Hook",
    "Hooks",
    "NewerLogError",
    "Notice",
    "OnAnswer",
    "Opened",
    "OutputShown",
    "PerdureError",
    "PermanentError",
    "Recorded",
    "RootRefusedError",
    "Ruling",
    "Session",
    "SessionBusyError",
    "StaleEpochError",
    "StoreFullError",
    "StoreLockedError",
    "TextShown",
    "Tool",
    "UncertainCommitError",
    "UsageError",
    "from_function",
    "open",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = "perdure.record.errors" if name.endswith("Error") else "perdure.api"
        return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'perdure' has no attribute '{name}'")
