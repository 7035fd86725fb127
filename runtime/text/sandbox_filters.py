"""The filters and tests of a chat template, each paid for: before it is done, and by what it has made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, cast

from jinja2 import TemplateError, pass_context
from jinja2.runtime import Context

from .metering import CALL, ENTRY, MADE

FILTERS: Final = (
    *("abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "format"),
    *("groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject"),
    *("rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr", "sort", "string", "sum", "title"),
    *("trim", "unique", "upper", "wordcount"),
)
_FREE: Final = frozenset({"attr", "count", "d", "default", "first", "last", "length", "items", "reverse"})
_LAZY: Final = frozenset({"list", "map", "max", "min", "reject", "rejectattr", "select", "selectattr"})
DIGITS_MAX, INDENT_MAX = 100, 100


class Budget(Protocol):
    """What a filter needs of the sandbox that it is in."""

    def spend(self, work: int) -> None: ...

    def size(self, value: Any) -> int: ...

    def made(self, value: Any) -> Any: ...

    def formatted(self, text: str, values: Any) -> str: ...

    def parts(self, between: str, parts: Iterable[Any]) -> list[Any]: ...

    def replaced(self, text: str, old: str, new: str, *_: Any) -> None: ...


def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or a test that is paid for, before it is done and by what it has made."""
    takes_first = hasattr(function, "jinja_pass_arg")

    @pass_context
    def paid(context: Context, *args: Any, **options: Any) -> Any:
        sandbox = cast("Budget", context.environment)
        sandbox.spend(CALL)
        if name == "join" and not isinstance(args[0], str):
            args = (list(args[0]), *args[1:])
        if name not in _FREE:
            lazy = name in _LAZY
            sandbox.spend(sum(ENTRY * len(arg) if lazy and _sized(arg) else sandbox.size(arg) for arg in args))
        check(sandbox, name, args, options)
        given = (_first_argument(function, context), *args) if takes_first else args
        return sandbox.made(function(*given, **options))

    return paid


def _sized(value: Any) -> bool:
    return isinstance(value, list | tuple | dict | range)


def _first_argument(function: Callable[..., Any], context: Context) -> Any:
    """What a filter of the library takes before its value: the context, its settings or the environment."""
    wanted = function.jinja_pass_arg.name  # type: ignore[attr-defined]
    return {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}[wanted]


def check(sandbox: Budget, name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Pay for what a filter is to make, or refuse a width, a precision or a start that makes it too large."""
    if name == "format":
        sandbox.formatted(str(args[0]), args[1:] or dict(options))
    elif name == "replace":
        sandbox.replaced(*(str(arg) for arg in (*args, *options.values())[:3]))
    elif name == "join":
        separator = args[1] if len(args) > 1 else options.get("d", "")
        sandbox.parts(str(separator), args[0])
    elif name == "indent":
        width = args[1] if len(args) > 1 else options.get("width", 4)
        wide = bounded("indent", len(width) if isinstance(width, str) else width, INDENT_MAX)
        sandbox.spend(MADE * str(args[0]).count("\n") * wide)
    elif name == "round":
        bounded("precision", args[1] if len(args) > 1 else options.get("precision", 0), DIGITS_MAX)
    elif name == "sum":
        start = args[2] if len(args) > 2 else options.get("start", 0)
        if not isinstance(start, int | float):
            raise TemplateError("it adds up what are no numbers")


def bounded(what: str, value: Any, maximum: int) -> int:
    if not isinstance(value, int) or abs(value) > maximum:
        raise TemplateError(f"its {what} of {str(value)[:20]} is above {maximum}")
    return value
