"""What a chat template is compiled with: a payment before every body, and around what is compared, cut and joined."""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

NODE, CALL, MADE, ENTRY = 16, 64, 4, 32
"""The work of a node of a body, of a call, of a character that is made, and of an entry of a list."""


class Metered(NodeTransformer):
    """Puts calls of the sandbox's own functions into a template."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        cost = _cost(node) if isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block) else 0
        visited = super().generic_visit(node, *args, **kwargs)
        if cost and isinstance(visited, nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block):
            visited.body.insert(0, nodes.ExprStmt(_call("turn", nodes.Const(cost)), lineno=node.lineno))
            if isinstance(visited, nodes.For) and visited.test is not None:
                visited.test = nodes.And(_call("turn", nodes.Const(cost)), visited.test)
        return visited

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _call("read", node.expr)
        for operand in node.ops:
            operand.expr = _call("read", operand.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call("joined", *node.nodes)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        ends = (node.arg.start, node.arg.stop, node.arg.step)
        return _call("cut", node.node, *(nodes.Const(None) if end is None else end for end in ends))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _call("made", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _call("made", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _call("made", node) if node.ctx == "load" else node


def _call(name: str, *args: nodes.Expr) -> nodes.Call:
    """A call of one of the environment's own functions, which no name of a template can stand for."""
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)


def _cost(node: nodes.Node) -> int:
    """The work of going once through all that is below a node."""
    below = list(node.find_all(nodes.Node))
    return NODE * len(below) + sum(len(each.data) for each in below if isinstance(each, nodes.TemplateData))


class GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; rendering keeps what it holds."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
