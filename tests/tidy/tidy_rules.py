"""The rules of the tree, each a function from a module or a text to the places that break it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("decodelog", "fsm", "runtime", "store", "migrations", "service")
UNSHIPPED = ("benchmarks", "tests", "tools")
MODULE_LINES_MAX = 400  # of what is shipped
UNSHIPPED_LINES_MAX = 450  # of tests, tools and benchmarks
FUNCTION_LINES_MAX = 70

MAY_IMPORT = {
    "decodelog": {"fsm", "runtime", "service"},
    "fsm": {"fsm"},
    "runtime": {"fsm", "runtime"},
    "store": {"fsm", "store"},
    "migrations": {"migrations", "store"},
    "service": {"__version__", "fsm", "migrations", "runtime", "service", "store"},
}
# The rooms of each package: one imports only from rooms before it, and from the modules that lie in the package itself.
ROOMS = {
    "fsm": ("errors", "request", "output", "evidence", "machine", "reading"),
    "runtime": ("caches", "text", "families", "model", "policy", "grammar", "loop"),
    "store": ("database", "log", "coordination", "appending", "retention", "memory", "archive", "reading"),
    "service": ("streams", "jobs", "inspect", "archive", "retention", "api", "batch", "lab", "cli"),
}
# Time, chance, the environment and other processes reach the core as arguments only.
CHANCE_AND_TIME = {"datetime", "random", "secrets", "time", "uuid"}
THE_OUTSIDE = {"importlib", "logging", "os", "pathlib", "platform", "socket", "sqlite3", "tempfile", "urllib"}
CONCURRENCY = {"asyncio", "concurrent", "multiprocessing", "subprocess", "threading"}
ONLY_THESE = {  # packages from outside the standard library
    "fsm": {"numpy", "pydantic", "pydantic_core", "rfc8785"},
    "migrations": {"alembic", "sqlalchemy"},
}
NEVER_THESE = {
    "fsm": CHANCE_AND_TIME | THE_OUTSIDE | CONCURRENCY,
    "runtime": {"alembic", "psycopg", "sqlalchemy", "sqlite3"},
    "store": {"gguf", "safetensors", "tokenizers", "torch", "transformers"},
}
INSTALLED_AS = {"pydantic_core": "pydantic", "yaml": "pyyaml"}  # where a package comes under another name
MACHINE = "fsm/machine/compiled.py"  # the one file that knows the state machine library
CLOCKED = ("runtime/loop/worker.py", "service/")  # where the wall clock may be read

SEEDED = "service/lab/simulation/"  # may own a generator that it has seeded; nobody may use the shared one
BANNED_IMPORT = {"cloudpickle", "dill", "pickle", "random", "shelve"}
BANNED_NAME = re.compile(r"^(?:torch\.(?:load|save)|(?:np|numpy)\.random\b.*)$")
WALL_CLOCK = re.compile(r"^time\.time(?:_ns)?$|(?:^|\.)(?:datetime|date)\.(?:now|utcnow|today)$")
LEFTOVER = re.compile(r"\b(?:FIXME|TODO|XXX)\b")
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:home|root|tmp)\b")


@dataclass(frozen=True, slots=True)
class Module:
    """A shipped module: its path from the root with slashes, and its source."""

    path: str
    text: str

    @property
    def layer(self) -> str:
        return self.path.split("/")[0]

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)


def shipped(root: Path) -> list[Module]:
    """Every Python file of the installed packages."""
    return modules_of(root, *LAYERS)


def unshipped(root: Path) -> list[Module]:
    """Every Python file of what stands beside them."""
    return modules_of(root, *UNSHIPPED)


def modules_of(root: Path, *folders: str) -> list[Module]:
    """The modules under folders of the tree; the links that make the folders one package are not followed."""
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    return [Module(path.relative_to(root).as_posix(), path.read_text("utf-8")) for path in paths]


def texts(root: Path) -> dict[str, str]:
    """Every text a reader of the repository may open, by its path; not what builds, caches and databases leave."""
    folders = [*LAYERS, "benchmarks", "docs", "examples", "tests", "tools", ".ci"]
    inner = [path for folder in folders for path in (root / folder).rglob("*") if not path.is_symlink()]
    top = [path for path in root.iterdir() if not path.name.startswith(".")]
    paths = [path for path in [*top, *inner] if path.is_file()]
    kinds = {"", ".cfg", ".ini", ".json", ".mako", ".md", ".py", ".toml", ".txt", ".typed", ".yaml", ".yml"}
    return {
        path.relative_to(root).as_posix(): path.read_text("utf-8", "replace") for path in paths if path.suffix in kinds
    }


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of each import; a name imported from a package counts as inside it."""
    folders = module.path.split("/")[:-1]
    package = folders if folders[:1] == ["decodelog"] else ["decodelog", *folders]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)


def dependency(module: Module) -> Iterator[str]:
    """Imports that the layering forbids."""
    for line, name in imports(module):
        parts = name.split(".")
        if parts[0] == "decodelog":
            allowed = parts[1] in MAY_IMPORT[module.layer]
            # A migration sees the tables and nothing else of the store.
            if module.layer == "migrations" and parts[1] == "store":
                allowed = parts[2:4] == ["database", "tables"]
        elif parts[0] == "transitions":
            allowed = module.path == MACHINE
        elif parts[0] in NEVER_THESE.get(module.layer, ()):
            allowed = False
        else:
            only = ONLY_THESE.get(module.layer)
            allowed = only is None or parts[0] in only or parts[0] in sys.stdlib_module_names
        if not allowed:
            yield f"{module.path}:{line} imports {name}"


def rooms(module: Module) -> Iterator[str]:
    """Imports from a room of the same package that comes after the module's own."""
    package, *rest = module.path.split("/")
    order = ROOMS.get(package, ())
    if not order or len(rest) < 2:
        return
    if rest[0] not in order:
        yield f"{module.path} is in no room of {package}"
        return
    for line, name in imports(module):
        parts = name.split(".")
        if parts[:2] == ["decodelog", package] and parts[2] in order and order.index(parts[2]) > order.index(rest[0]):
            yield f"{module.path}:{line} imports {name}, from a room behind its own"


def distribution(requirement: str) -> str:
    """What an import or a requirement is installed as, in the index's own spelling."""
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
    return INSTALLED_AS.get(name, re.sub(r"[-_.]+", "-", name).lower())


def undeclared(module: Module, declared: set[str], own: Set[str] = frozenset()) -> Iterator[str]:
    """Imports of packages that nobody asked to be installed; `own` are the module names of the tree itself."""
    for line, name in imports(module):
        package = name.split(".")[0]
        if package not in sys.stdlib_module_names | own | {"decodelog"} and distribution(package) not in declared:
            yield f"{module.path}:{line} imports {package}, which pyproject.toml does not declare"


def length(module: Module) -> Iterator[str]:
    """Modules too long to be held in the head."""
    maximum = MODULE_LINES_MAX if module.layer in LAYERS else UNSHIPPED_LINES_MAX
    if (lines := module.text.count("\n")) > maximum:
        yield f"{module.path} has {lines} lines, at most {maximum}"


def size(module: Module) -> Iterator[str]:
    """The same, and functions too long for it."""
    yield from length(module)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{module.path}:{node.lineno} {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"


def banned(module: Module) -> Iterator[str]:
    """Pickles, chance without an address, assertions that -O removes, prints, and the wall clock outside the shell."""
    clocked = module.path.startswith(CLOCKED)
    for line, name in imports(module):
        unclocked = WALL_CLOCK.search(name) and not clocked
        if name == "random.Random" and module.path.startswith(SEEDED):
            continue
        if name.split(".")[0] in BANNED_IMPORT or BANNED_NAME.search(name) or unclocked:
            yield f"{module.path}:{line} imports {name}"
    for node in ast.walk(module.tree):
        match node:
            case ast.Assert():
                yield f"{module.path}:{node.lineno} asserts; raise a typed error"
            case ast.Call(func=ast.Name(id="print")) if module.layer != "service":
                yield f"{module.path}:{node.lineno} prints; only the service speaks to people"
            case ast.Attribute() if BANNED_NAME.search(name := ast.unparse(node)):
                yield f"{module.path}:{node.lineno} uses {name}"
            case ast.Attribute() if not clocked and WALL_CLOCK.search(name := ast.unparse(node)):
                yield f"{module.path}:{node.lineno} reads {name}; take the time as an argument"


def lines_with(pattern: re.Pattern[str], path: str, text: str) -> Iterator[str]:
    """The lines of a text in which the pattern is found."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := pattern.search(line):
            yield f"{path}:{number} says {found[0]}"


def changelog(text: str) -> Iterator[str]:
    """Releases are second-level headings, newest first; their third-level headings are the three groups in order."""
    groups = ["Safety", "Features", "Internals"]
    releases = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    if not releases:
        yield "no release heading"
    for release in releases:
        title = release.splitlines()[0]
        if not re.match(r"^\[?(?:Unreleased|\d+\.\d+\.\d+)\b", title):
            yield f"'{title}' is neither Unreleased nor a version"
        found = re.findall(r"^### (.+)$", release, flags=re.MULTILINE)
        if not found or found != [group for group in groups if group in found]:
            yield f"'{title}' has the groups {found}; use {', '.join(groups)}, in that order"
