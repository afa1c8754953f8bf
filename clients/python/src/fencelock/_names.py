"""Names of resources made from a function's arguments."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Mapping, Sequence

Namer = Callable[[Sequence[Any], Mapping[str, Any]], str]


def resource_of(template: str, function: Callable[..., Any]) -> Namer:
    signature = inspect.signature(function)

    def name(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return template.format_map(bound.arguments)

    return name
