"""What a tool is: a name, typed arguments, where it acts and how far it may reach.

Arguments are msgspec structs: their JSON schema is what the model is told, and conversion is their validation. A tool of the Space becomes one
operation of it; a tool in the driver's place names a function that runs in a process of its own (`perdure.program.toolhost`).
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import typing
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from perdure.model.stream import ToolSpec
from perdure.record.errors import UsageError
from perdure.record.records import EffectClass, Place
from perdure.space.space import Op

DEFAULT_TIMEOUT_S = 600.0


class Tool(Struct, frozen=True):
    """`operation` makes the Space's operation of validated arguments; `function` is `module:name` of a tool in the driver's place.

    `undo` False means that recovery never takes back what it did: its cut-off calls end `unknown`.
    """

    name: str
    description: str
    args: type[Struct]
    effect: EffectClass
    place: Place = "space"
    operation: Callable[[Any], Op] | None = None
    function: str | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    undo: bool = True

    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, schema_of(self.args))

    def problem(self, args: dict[str, Any], raw: str | None = None) -> str | None:
        """What is wrong with these arguments, in words for the model; None if they are right."""
        if raw is not None:
            return f"The arguments were not a JSON object: {raw[:200]}"
        try:
            msgspec.convert(args, self.args, strict=False)
        except msgspec.ValidationError as error:
            return f"Invalid arguments for {self.name}: {error}. Expected: {_signature(self.args)}"
        unknown = sorted(set(args) - set(self.args.__struct_fields__))
        if unknown:
            return f"Invalid arguments for {self.name}: unknown {', '.join(unknown)}. Expected: {_signature(self.args)}"
        return None

    def convert(self, args: dict[str, Any]) -> Struct:
        return msgspec.convert(args, self.args, strict=False)


class ToolSet:
    """The tools of a session, by name; `digest` changes when anything the model is told about them does."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self.specs = tuple(tool.spec() for tool in self._tools.values())
        self.digest = hashlib.sha256(msgspec.json.encode(self.specs, order="sorted")).hexdigest()
        self.names = tuple(self._tools)

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def effect(self, name: str) -> EffectClass:
        tool = self._tools.get(name)
        return tool.effect if tool else "none"


def schema_of(args: type[Struct]) -> dict[str, Any]:
    """A self-contained JSON schema of type object."""
    _, components = msgspec.json.schema_components([args], ref_template="#/$defs/{name}")
    root = components.pop(args.__name__)
    root.pop("title", None)
    return {**root, "additionalProperties": False, **({"$defs": components} if components else {})}


def _signature(args: type[Struct]) -> str:
    required = set(schema_of(args).get("required", ()))
    return ", ".join(name if name in required else f"{name}?" for name in args.__struct_fields__)


def from_function(
    function: Callable[..., Any], *, effect: EffectClass = "external", timeout_s: float = DEFAULT_TIMEOUT_S
) -> Tool:
    """A tool in the driver's place from an importable function with annotated parameters and a docstring.

    Raises UsageError for a lambda, a nested function or a missing annotation: the call runs in a process of its own, which
    has to find the function by its name.
    """
    name, module = function.__qualname__, function.__module__
    if module == "__main__":
        raise UsageError(f"{name} can't be a tool where it is: move it from the script that runs to a module that it imports")
    if "." in name or name == "<lambda>":
        raise UsageError(f"{module}.{name} can't be a tool: define it at the top level of an importable module")
    hints = typing.get_type_hints(function)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in hints:
            raise UsageError(f"tool {name}: parameter '{parameter.name}' needs a type annotation")
        default = () if parameter.default is parameter.empty else (parameter.default,)
        fields.append((parameter.name, hints[parameter.name], *default))
    args = msgspec.defstruct(f"{name}_args", fields, frozen=True, kw_only=True)
    description = inspect.getdoc(function) or name
    return Tool(name, description, args, effect, place="driver", function=f"{module}:{name}", timeout_s=timeout_s)


def names_of(tools: Iterable[Tool]) -> tuple[str, ...]:
    """How a session remembers its tools: built-in ones by name, functions as `module:name@class`, with their time if it is their own."""
    return tuple(tool.name if tool.function is None else f"{tool.function}@{tool.effect}{_time_of(tool)}" for tool in tools)


def _time_of(tool: Tool) -> str:
    return "" if tool.timeout_s == DEFAULT_TIMEOUT_S else f";{tool.timeout_s:g}"


def load(names: Iterable[str], builtin: Iterable[Tool]) -> ToolSet:
    """The tools that a session remembers. UsageError, naming it, for a function that can't be imported any more."""
    known = {tool.name: tool for tool in builtin}
    return ToolSet([known[name] if name in known else _import(name) for name in names])


def _import(name: str) -> Tool:
    target, _, manner = name.partition("@")
    effect, _, timeout_s = manner.partition(";")
    module, _, function = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"there is no tool '{name}': {error}; install the package that has it") from error
    return from_function(found, effect=msgspec.convert(effect, EffectClass), timeout_s=float(timeout_s or DEFAULT_TIMEOUT_S))
