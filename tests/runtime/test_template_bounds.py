"""Every chat template ends: work, sizes and depth are counted, the same on every machine, and then it is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decodelog.fsm.errors import LimitExceeded, TemplateFailed
from decodelog.fsm.limits import TEMPLATE_CHARACTERS_MAX
from decodelog.runtime.text.chat import ChatTemplate
from decodelog.runtime.text.sandbox import METHODS, Sandbox
from decodelog.runtime.text.tokenizer import template_of

CHAT = [{"role": "user", "content": "hi"}]
DOUBLING = "{% set ns = namespace(v=START) %}{% for i in range(60) %}{% set ns.v = STEP %}{% endfor %}{{ ns.v }}"
FOR_EVER = "{% set b = 'a' * 1000000 %}{% for i in range(99999) %}STEP{% endfor %}"
WORK, VALUE, NONE = "more work", "larger than any chat", "unsafe|No filter named|undefined"

# Each would take hours, or all memory there is.
BOMBS = {
    "loops in loops": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", WORK),
    "a filtered loop": (
        "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
        WORK,
    ),
    "a long text in loops": (
        "{% for a in range(99999) %}{% for b in range(999) %}" + "x" * 9999 + "{% endfor %}{% endfor %}",
        WORK,
    ),
    "a macro twice in itself": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        WORK,
    ),
    "a block twice in itself": (
        "{% set ns = namespace(n=0) %}{% block x %}{% set ns.n = ns.n + 1 %}{{ self.x() }}{{ self.x() }}{% endblock %}",
        "deep",
    ),
    "a loop in itself": ("{% for a in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}", "deep"),
    "a macro in itself": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deep"),
    "brackets in brackets": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "deep"),
    "loops written in loops": ("{% for a in [1] %}" * 60 + "{% endfor %}" * 60, "nested"),
    "a text many times": ("{{ 'x' * 10 ** 10 }}", WORK),
    "many times a text": ("{{ 10 ** 10 * 'x' }}", WORK),
    "a list many times": ("{{ [0] * 10 ** 10 }}", WORK),
    "a text many times, in a condition": ("{{ 1 if 'x' * 10 ** 10 else 2 }}", WORK),
    "a long range": ("{{ range(10 ** 10) | list }}", "Range too big"),
    "a power": ("{{ (10 ** 100) ** 10 ** 10 }}", VALUE),
    "squares": (DOUBLING.replace("START", "10").replace("STEP", "ns.v * ns.v"), VALUE),
    "joined by ~": (DOUBLING.replace("START", "'x'").replace("STEP", "ns.v ~ ns.v"), WORK),
    "joined by +": (DOUBLING.replace("START", "'x'").replace("STEP", "ns.v + ns.v"), WORK),
    "joined by a filter": (DOUBLING.replace("START", "'x'").replace("STEP", "[ns.v, ns.v] | join"), WORK),
    "joined by a method": (DOUBLING.replace("START", "'x'").replace("STEP", "ns.v.join(['a', 'b', 'c'])"), WORK),
    "joined from what is drawn one by one": ("{{ (['x' * 1000000] * 99999) | select | join }}", "more work|larger"),
    "replaced by more": (DOUBLING.replace("START", "'x'").replace("STEP", "ns.v.replace('x', 'xx')"), WORK),
    "replaced by more, by a filter": (
        DOUBLING.replace("START", "'x'").replace("STEP", "ns.v | replace('x', 'xx')"),
        WORK,
    ),
    "lists joined": (DOUBLING.replace("START", "[0]").replace("STEP", "ns.v + ns.v"), WORK),
    "a list twice in a list": (DOUBLING.replace("START", "[0]").replace("STEP", "[ns.v, ns.v]"), VALUE),
    "a tuple twice in a tuple": (DOUBLING.replace("START", "(0,)").replace("STEP", "(ns.v, ns.v)"), VALUE),
    "an object twice in one": (DOUBLING.replace("START", "{}").replace("STEP", "{'a': ns.v, 'b': ns.v}"), VALUE),
    "an object by a function": (DOUBLING.replace("START", "{}").replace("STEP", "dict(a=ns.v, b=ns.v)"), VALUE),
    "a block that is kept": (
        "{% set ns = namespace(v='x') %}{% for i in range(60) %}{% set t %}{{ ns.v }}{{ ns.v }}{% endset %}"
        "{% set ns.v = t %}{% endfor %}",
        WORK,
    ),
    "padded by a format": ("{{ '%1000000000d' % 1 }}", "pads"),
    "padded by a width that is given": ("{{ '%*d' % (1000000000, 1) }}", "pads"),
    "padded by a precision": ("{{ '%.1000000000f' % 1 }}", "pads"),
    "padded by a filter": ("{{ '%1000000000d' | format(1) }}", "pads"),
    "padded by str.format": ("{{ '{:1000000000}'.format(1) }}", NONE),
    "padded by an attribute": ("{{ ('{:1000000000}' | attr('format'))(1) }}", NONE),
    "padded by an item": ("{{ '{:1000000000}'['format_map']({}) }}", NONE),
    "padded by a method": ("{{ 'a'.center(10 ** 9) }}{{ 'a'.ljust(10 ** 9) }}", NONE),
    "padded by zeros": ("{{ 'a'.zfill(10 ** 9) }}", NONE),
    "padded by tabs": ("{{ '\t'.expandtabs(10 ** 9) }}", NONE),
    "padded in a filter": ("{{ 'a' | center(10 ** 9) }}", NONE),
    "indented": ("{{ 'a\nb' | indent(10 ** 9) }}", "indent"),
    "indented as JSON": ("{{ [[1]] | tojson(indent=10 ** 9) }}", "indent"),
    "filled up": ("{{ [1] | batch(10 ** 9, 'x') | list }}", NONE),
    "cut into many": ("{{ [1] | slice(10 ** 9) | list }}", NONE),
    "many words": ("{{ lipsum(n=10 ** 9) }}", NONE),
    "many bytes": ("{{ (0).to_bytes(10 ** 9, 'big') }}", NONE),
    "rounded": ("{{ 5 | round(-10 ** 9) }}", "precision"),
    "rounded by name": ("{{ 5 | round(precision=-(10 ** 9)) }}", "precision"),
    "added up": ("{{ ([[0] * 1000] * 1000) | sum(start=[]) }}", "no numbers"),
    "a date": ("{{ strftime_now('%1000000000d') }}", "date"),
    "counted again and again": (FOR_EVER.replace("STEP", "{% set x = b.count('a') %}"), WORK),
    "compared again and again": (FOR_EVER.replace("STEP", "{% if b == b %}{% endif %}"), WORK),
    "looked for again and again": (FOR_EVER.replace("STEP", "{% if 'b' in b %}{% endif %}"), WORK),
    "asked again and again": (FOR_EVER.replace("STEP", "{% if b is upper %}{% endif %}"), WORK),
    "turned round again and again": (FOR_EVER.replace("STEP", "{% set x = b[::-1] %}"), WORK),
    "written larger again and again": (FOR_EVER.replace("STEP", "{% set x = b | upper %}"), WORK),
    "sorted again and again": ("{% for i in range(99999) %}{% set x = range(99999) | sort %}{% endfor %}", WORK),
    "chosen at random": ("{{ [1, 2] | random }}", NONE),
}


@pytest.mark.contract("ENV-1", "ENV-7")
@pytest.mark.parametrize("name", BOMBS)
def test_a_template_that_would_never_end_is_refused_by_what_it_does(name: str) -> None:
    source, reason = BOMBS[name]
    with pytest.raises(TemplateFailed, match=reason):
        ChatTemplate(source, {}).render(CHAT, True, 0)


@pytest.mark.contract("ENV-7")
def test_the_same_work_is_counted_for_the_same_template_and_messages() -> None:
    def left() -> int:
        sandbox = Sandbox()
        source = (
            "{% for m in messages %}{{ m.content | trim ~ m['role'] }}{% if m.role == 'user' %}x{% endif %}{% endfor %}"
        )
        assert sandbox.from_string(source).render(messages=CHAT * 3) == "hiuserx" * 3
        return sandbox.left

    assert left() == left() < Sandbox().left


# What each costs of the work that a template may do. A chat that one release renders the next one renders too.
COSTS = {
    "{{ 'abcdef'.replace('b', 'xyz') }}": 152,
    "{{ 'abcdef'.replace('bc', '') }}": 110,
    "{{ ['a','bb']|join(', ') }}": 248,
    "{{ ', '.join(['a','bb']) }}": 247,
    "{{ 'ab' ~ 'cd' }}": 42,
    "{{ 'ab' + 'cd' }}": 40,
    "{{ 'ab' * 5 }}": 144,
    "{{ 5 * 'ab' }}": 144,
    "{{ [1, 2] * 3 }}": 1920,
    "{{ 'hello'|upper }}": 114,
    "{{ 'hello'[::-1] }}": 44,
    "{{ 'hello'[1:3] }}": 20,
    "{{ 'ell' in 'hello' }}": 138,
    "{{ 'ab' == 'ab' }}": 134,
    "{{ [3, 1, 2]|sort|join }}": 988,
    "{{ messages|map(attribute='role')|join }}": 253,
    "{{ messages|tojson }}": 369,
    "{{ '%s-%s' % ('a', 'b') }}": 169,
    "{{ range(5)|list|length }}": 640,
    "{{ 2 ** 10 }}": 128,
    "{{ 'a,b'.split(',')|length }}": 325,
    "{{ 'hi'|trim }}": 87,
    "{{ [1, 2]|sum }}": 352,
    "{% for i in range(3) %}x{% endfor %}": 355,
    "{% for i in range(3) %}{% for j in range(4) %}x{% endfor %}{% endfor %}": 1951,
    "{% macro f(x) %}{{ x }}{% endmacro %}{{ f('abc') }}": 156,
    "{% if messages %}yes{% endif %}": 0,
}


@pytest.mark.contract("ENV-7")
@pytest.mark.parametrize("source", COSTS)
def test_work_costs_what_it_has_always_cost(source: str) -> None:
    sandbox = Sandbox()
    before = sandbox.left
    sandbox.from_string(source).render(messages=CHAT)
    assert before - sandbox.left == COSTS[source]


@pytest.mark.contract("ENV-1", "ENV-7")
def test_a_long_chat_is_rendered() -> None:
    source = (
        "{%- set ns = namespace(last=0) %}{%- for m in messages[::-1] %}{%- if m.role == 'user' and ns.last == 0 %}"
        "{%- set ns.last = messages | length - 1 - loop.index0 %}{%- endif %}{%- endfor %}"
        "{%- for m in messages %}{%- set content = m.content | trim %}{%- if 'x' in content %}"
        "{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>' + '\n' }}{%- endif %}{%- endfor %}"
    )
    messages = [{"role": "user" if i % 2 else "assistant", "content": f"{i} " + "x" * 500} for i in range(2000)]
    text = ChatTemplate(source, {}).render(messages, True, None)
    assert text.count("<|im_start|>") == 2000
    assert text.count("x") == 2000 * 500


@pytest.mark.contract("ENV-1", "ENV-7")
@pytest.mark.parametrize("in_a_file", [True, False])
def test_a_template_longer_than_any_is_refused_by_its_size(tmp_path: Path, in_a_file: bool) -> None:
    source = "x" * (TEMPLATE_CHARACTERS_MAX + 1)
    if in_a_file:
        (tmp_path / "chat_template.jinja").write_text(source)
    else:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
    with pytest.raises(LimitExceeded, match="chat template"):
        template_of(tmp_path)


# Expressions over `messages` with what they are, as templates in use write them.
USED = {
    "'%s: %d' % ('a', 3)": "a: 3",
    "'%s'|format('a')": "a",
    "'a-b'.split('-')|join('+')": "a+b",
    "['a', 'b']|join(', ')": "a, b",
    "', '.join(['a', 'b'])": "a, b",
    "messages|map(attribute='role')|join": "user",
    "messages|selectattr('role', 'equalto', 'user')|list|length": "1",
    "messages|rejectattr('role', 'equalto', 'user')|list|length": "0",
    "messages[0]|tojson": '{"role": "user", "content": "hi"}',
    "messages[0]|tojson(indent=1)": '{\n "role": "user",\n "content": "hi"\n}',
    "messages[1:]|length": "0",
    "'hi'[::-1]": "ih",
    "messages[0].items()|list": "[('role', 'user'), ('content', 'hi')]",
    "messages[0].get('x', 'y')": "y",
    "'a\nb'|indent(2)": "a\n  b",
    "'hi'|upper ~ 1 ~ none": "HI1None",
    "'a,b'.replace(',', ';')": "a;b",
    "'a,b'|replace(',', ';')": "a;b",
    "[3, 1]|sort|first": "1",
    "(1, 2) + (3,)": "(1, 2, 3)",
    "{'a': 1}.keys()|list": "['a']",
    "'hi' is string and messages is iterable and nothing is not defined": "True",
    "nothing|default('x')": "x",
    "[1, 2]|sum": "3",
    "3.14159|round(2)": "3.14",
    "'<b>'|e": "&lt;b&gt;",
    "2 ** 10 + 3 * 4 - 7 % 4": "1033",
    "'x' * 3": "xxx",
    "'x' * -1": "",
    "strftime_now('%Y-%m-%d')": "1970-01-02",
}


@pytest.mark.contract("ENV-7")
@pytest.mark.parametrize("expression", USED)
def test_what_templates_use_means_what_it_means_in_jinja(expression: str) -> None:
    text = ChatTemplate("{{ " + expression + " }}", {}).render(CHAT, True, 86_400_000)
    assert text == USED[expression]


@pytest.mark.contract("ENV-1", "ENV-7")
@pytest.mark.parametrize(
    ("largest", "larger"),
    [("2 ** 2048", "2 ** 2049"), ("2 ** 2047 * 2 ** 2047", "2 ** 2047 * 2 ** 2048")],
)
def test_a_number_may_be_as_long_as_its_bound_and_no_longer(largest: str, larger: str) -> None:
    assert ChatTemplate(f"{{{{ ({largest}) % 7 }}}}", {}).render(CHAT, True, 0) == str(eval(largest) % 7)
    with pytest.raises(TemplateFailed, match=VALUE):
        ChatTemplate(f"{{{{ ({larger}) % 7 }}}}", {}).render(CHAT, True, 0)


def test_no_method_that_is_there_pads_or_changes() -> None:
    named = {name for methods in METHODS.values() for name in methods}
    assert named.isdisjoint({"center", "ljust", "rjust", "zfill", "expandtabs", "format", "format_map", "translate"})
    assert named.isdisjoint({"append", "extend", "insert", "pop", "update", "setdefault", "clear", "sort", "reverse"})
