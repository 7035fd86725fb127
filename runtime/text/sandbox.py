"""A Jinja environment in which every template ends: work, sizes and depth are bounded, and nothing is drawn at random.

A template comes with a model, and may be anybody's. Its work is counted, never timed, so that the same template on the
same messages is rendered or refused on every machine alike:

    16 for each node of a body that is entered (a loop's turn, a macro, a block), 1 for each character of its own words
    64 for a call of a macro, a method, a filter or a test
    1 for each character that an operation reads, 4 for each that it makes, 32 for each entry of a list

What would make a large value is asked for its size before it is made. Of the methods of strings, lists and objects
those are there that chat templates call, and that make nothing larger than what they are given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from jinja2 import TemplateError, nodes, pass_context
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...fsm.limits import TEMPLATE_WORK_MAX
from .metering import CALL, ENTRY, MADE, GenerationBlock, Metered
from .sandbox_filters import FILTERS, INDENT_MAX, bounded, counted

_STRING: Final = (
    *("capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal", "isdigit", "islower"),
    *("isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition", "removeprefix"),
    *("removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines"),
    *("startswith", "strip", "title", "upper"),
)
METHODS: Final[dict[type, tuple[str, ...]]] = {
    str: _STRING,
    list: ("count", "index"),
    tuple: ("count", "index"),
    dict: ("copy", "get", "items", "keys", "values"),
    range: (),
    bytes: (),
    int: (),
    float: (),
    type(None): (),
}
INTEGER_BITS_MAX: Final = 4096
_WIDE = re.compile(r"%[^%a-zA-Z]*(\d{3}|\*)")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of one rendering. Its methods `turn`, `read`, `cut` and `joined` are called by what it compiles.

    left  work that the template may still do
    Errors of every operation: TemplateError where the work is done up, SecurityError (its kind) for what is not there.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants would be worked out while it is compiled
            finalize=_shown,
            extensions=[loopcontrols, GenerationBlock],
        )
        self.left = TEMPLATE_WORK_MAX
        self._sizes: dict[int, tuple[Any, int]] = {}
        self.filters = {name: counted(name, self.filters[name]) for name in FILTERS} | {"tojson": self._to_json}
        tests: dict[str, Any] = self.tests
        self.tests = {name: counted("", test) for name, test in tests.items()}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _refuse

    # ---- the budget --------------------------------------------------------------------------------------------------

    def spend(self, work: int) -> None:
        if work > self.left:
            raise TemplateError("it does more work, or makes a longer text, than any chat needs")
        self.left -= work

    def turn(self, work: int) -> bool:
        """Enter a body of so much work; True, so that it can stand in a condition."""
        self.spend(work)
        return True

    def read(self, value: Any) -> Any:
        """A value that is compared or shown whole."""
        self.spend(self.size(value))
        return value

    def made(self, value: Any) -> Any:
        """A value that an operation has made."""
        if isinstance(value, str):
            self.spend(MADE * len(value))
        elif isinstance(value, list | tuple | dict):
            self.spend(ENTRY * len(value))
            if self.size(value) > TEMPLATE_WORK_MAX:  # entries may be shared, so that it is far larger than its memory
                raise TemplateError("it makes a value that is larger than any chat needs")
        return value

    def size(self, value: Any) -> int:
        """Characters of a string; what all entries of a list or an object have together, each as often as it is there.

        Lists cannot be changed here, so that each is looked through once.
        """
        if isinstance(value, str):
            return len(value) + 1
        if isinstance(value, range):
            return ENTRY * len(value)
        if not isinstance(value, list | tuple | Mapping):
            return ENTRY
        known = self._sizes.get(id(value))
        if known is None:
            entries = [*value, *value.values()] if isinstance(value, Mapping) else value
            known = value, ENTRY + sum(map(self.size, entries))
            self._sizes[id(value)] = known  # with the value, so that its id stays its own
        return known[1]

    # ---- operations --------------------------------------------------------------------------------------------------

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operation whose result may be larger than both its operands."""
        if operator == "%" and isinstance(left, str):
            return self.formatted(left, right)
        if operator in ("*", "**"):
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | list | tuple) and isinstance(other, int):
                    self.spend(MADE * (self.size(one) if isinstance(one, str) else ENTRY * len(one)) * max(other, 0))
            if isinstance(left, int) and isinstance(right, int):
                bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
                if abs(bits) > INTEGER_BITS_MAX:
                    raise TemplateError("it makes a number that is larger than any chat needs")
        elif isinstance(left, str) and isinstance(right, str):
            self.spend(len(left) + len(right))
        return self.made(super().call_binop(context, operator, left, right))

    def formatted(self, text: str, values: Any) -> str:
        """`text % values`, without a width that pads."""
        if _WIDE.search(text):
            raise TemplateError("it pads a text to a width")
        self.spend(len(text) + text.count("%") * self.size(values))
        return str(self.made(text % values))

    def joined(self, *parts: Any) -> str:
        """The parts as texts, one after the other: what `~` makes."""
        return str(self.made("".join([str(self.read(part)) for part in parts])))

    def cut(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """`value[start:stop:step]`."""
        return self.made(value[start:stop:step])

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A macro, a function of the environment, or a method that `is_safe_attribute` has let pass."""
        owner = getattr(__obj, "__self__", None)
        if owner is __self:
            return __obj(*args)  # the others are the template's variables, for whoever asks for its context
        __self.spend(CALL)
        if isinstance(owner, str):
            __self.spend(len(owner) + sum(map(__self.size, args)))
            if __obj.__name__ == "join":
                args = (__self.parts(owner, *args),)
            elif __obj.__name__ == "replace":
                __self.replaced(owner, *args)
        return __self.made(super().call(__context, __obj, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Of Python's own types the listed methods; of Jinja's what the sandbox lets pass."""
        for kind, methods in METHODS.items():
            if isinstance(obj, kind):
                return attr in methods
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """`str.format` is not there: it pads."""

    def parts(self, between: str, parts: Iterable[Any]) -> list[Any]:
        """The parts of a join, after it was paid for."""
        parts = list(parts)
        self.spend(MADE * (sum(map(self.size, parts)) + len(between) * len(parts)))
        return parts

    def replaced(self, text: str, old: str, new: str, *_: Any) -> None:
        """Pay for a replacement."""
        self.spend(MADE * max(0, len(new) - len(old)) * text.count(old))

    def _to_json(self, value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        """JSON as chat templates expect it: nothing is escaped for HTML."""
        wide = bounded("indent", indent or 0, INDENT_MAX)
        self.spend(self.size(value) * (1 + wide))
        return str(self.made(json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)))

    # ---- compiling ---------------------------------------------------------------------------------------------------

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = Metered().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree  # type: ignore[no-any-return]


def _refuse(message: str) -> None:
    """What a template calls where it does not take the messages."""
    raise TemplateError(message)


@pass_context
def _shown(context: Context, value: Any) -> Any:
    """A value on its way into the text."""
    sandbox = context.environment
    if isinstance(sandbox, Sandbox):
        sandbox.spend(MADE * sandbox.size(value))
    return value
