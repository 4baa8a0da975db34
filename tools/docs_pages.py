"""What `mkdocs build` adds to the pages of docs/: tables from the code, and the source files that pages link to.

A page is Markdown that reads well by itself. Where it says ``<!-- insert: WHAT -->``, a generated part follows on the
site. A link to a file outside docs/ leads to a page with that file's source; ``file.py#name`` to the line where a class
or function begins, ``file.py#function:words`` to the first line of it with these words.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import posixpath
import re
import typing
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound

import sparsona
from sparsona.api.catalogue import OptionInfo, options, sections
from sparsona.cli import app
from sparsona.experiment.checking import allowed, is_required, shown
from sparsona.experiment.field_docs import field_docs
from sparsona.experiment.recipe import Recipe
from sparsona.method import capabilities
from sparsona.methods import METHODS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}  # files of the root that are pages
LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)\s#]+)(?:#([^)\s]+))?(\))")
INSERT = re.compile(r"<!-- insert: (.+?) -->")
FENCE = re.compile(r"(^```.*?^```\s*$)", re.MULTILINE | re.DOTALL)
GROUPS = {
    "SgdTraining": "Local training",
    "Training": "Optimiser",
    "StatefulTraining": "Optimiser state",
    "MaskedClip": "Clipping under a mask",
    "Weighting": "Weights of clients",
    "WeakClients": "Weak clients",
    "FineTuning": "Tuning at the end",
    "LayerMasks": "Layer masks",
    "Gating": "Gates and blocks",
    "FedAvg": "FedAvg",
}


# hooks of MkDocs


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of files outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for source in sorted(linked_sources()):
        files.append(File.generated(config, source_page(source), content=source_text(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the generated parts of a page, and lead its links to source pages."""
    place = page.file.src_uri
    if place.startswith("source/"):
        return markdown
    for source, made in PAGES.items():
        if made == place:
            return led(markdown, source, place)
    return inserted(led(markdown, f"docs/{place}", place), Path(place).stem)


# links


def led(markdown: str, home: str, place: str) -> str:
    """The text of a file with links as its page needs them: ``home`` from the root, ``place`` on the site."""

    def replace(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(home), match[2]))
        page, anchor = site_page(target), match[3]
        if not target.startswith("docs/") and anchor:
            anchor = f"L-{line_of(target, anchor)}"
        path = posixpath.relpath(page, posixpath.dirname(place) or ".")
        return f"{match[1]}{path}{'#' + anchor if anchor else ''}{match[4]}"

    return "".join(part if part.startswith("```") else LINK.sub(replace, part) for part in FENCE.split(markdown))


def site_page(target: str) -> str:
    """Where a file of the repository is on the site."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return PAGES.get(target) or source_page(target)


def source_page(target: str) -> str:
    """The page of a source file."""
    return f"source/{target}.md"


def linked_sources() -> set[str]:
    """The files outside docs/ that pages link to, and that are no pages themselves."""
    found = set()
    for path in [*DOCS.rglob("*.md"), *(ROOT / name for name in PAGES)]:
        home = path.relative_to(ROOT).as_posix()
        for part in FENCE.split(path.read_text()):
            for match in LINK.finditer("" if part.startswith("```") else part):
                target = posixpath.normpath(posixpath.join(posixpath.dirname(home), match[2]))
                if not target.startswith("docs/") and target not in PAGES:
                    found.add(target)
    return found


@cache
def _lines(file: str) -> list[str]:
    return (ROOT / file).read_text().splitlines()


@cache
def _spans(file: str) -> dict[str, tuple[int, int]]:
    """First and last line of each class and function; methods as Class.name, too."""
    spans: dict[str, tuple[int, int]] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                span = (child.lineno, child.end_lineno or child.lineno)
                spans.setdefault(child.name, span)
                spans[prefix + child.name] = span
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse("\n".join(_lines(file))), "")
    return spans


def line_of(file: str, anchor: str) -> int:
    """The line that ``name`` or ``name:words`` stands for; LookupError if there is none."""
    name, _, words = anchor.partition(":")
    if name not in _spans(file):
        raise LookupError(f"{file} has no {name}")
    first, last = _spans(file)[name]
    wanted = unquote(words)
    for number in range(first, last + 1):
        if wanted in _lines(file)[number - 1]:
            return number
    raise LookupError(f"{file}: {name} has no line with {wanted!r}")


def source_text(file: str) -> str:
    """A source file as a page with an anchor for each line."""
    text = (ROOT / file).read_text()
    head = f"---\nsearch:\n  exclude: true\nhide: [toc, navigation]\n---\n\n# {file}\n\n"
    if file.endswith(".ipynb"):
        return head + _notebook(text)
    try:
        lexer = get_lexer_for_filename(file)
    except ClassNotFound:
        return head + f"```\n{text}\n```\n"
    code = highlight(text, lexer, HtmlFormatter(nowrap=True)).splitlines()
    lines = "\n".join(f'<span class="line" id="L-{n}">{line}</span>' for n, line in enumerate(code, 1))
    return f'{head}<div class="highlight source"><pre><code>{lines}</code></pre></div>\n'


def _notebook(text: str) -> str:
    cells = ((cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"])
    parts = [
        f"```python\n{body}\n```" if kind == "code" else re.sub(r"^#", "##", body, flags=re.M) for kind, body in cells
    ]
    return "\n\n".join(parts) + "\n"


# generated parts


def inserted(markdown: str, name: str) -> str:
    """A page with its generated parts."""

    def replace(match: re.Match[str]) -> str:
        what, *words = match[1].split()
        parts: dict[str, typing.Callable[[], str]] = {
            "facts": lambda: facts(name),
            "options": lambda: method_options(name),
            "recipe": recipe_reference,
            "commands": lambda: "\n".join(command_reference()),
            "api": lambda: "\n\n".join(api_entry(word) for word in words),
        }
        return parts[what]()

    return INSERT.sub(replace, markdown)


def facts(name: str) -> str:
    """What a method is, in a table: from its hooks, and from the table of methods."""
    method, (_, keeps, tested) = METHODS[name](), method_table()[name]
    can = capabilities(method)
    training = [kind.__name__ for kind in type(method).__mro__]
    points = ["before", "after", *(["shared"] if can.shares else []), *(["finished"] if can.finetunes else [])]
    module = type(method).__module__.replace(".", "/")
    rows = {
        "Name in recipes": f"`{name}`",
        "Who talks to whom": "clients and a server" if can.star else "clients among themselves (`[topology]`)",
        "A client keeps": keeps,
        "Tested with": tested,
        "Evaluation points": ", ".join(f"`{point}`" for point in points),
        "Optimisers": "SGD, Adam, `torch.optim`" if "Training" in training else "SGD",
        "Newcomers": _newcomers(can.star is not None, can.welcomes is not None),
        "Source": f"[`{module}.py`](../source/src/{module}.py.md)",
    }
    return "| | |\n|---|---|\n" + "\n".join(f"| **{key}** | {value} |" for key, value in rows.items())


def _newcomers(star: bool, welcomes: bool) -> str:
    if not star:
        return "none: a method without a server has no newcomers"
    return "in the method's own way (`welcome`)" if welcomes else "tune the whole model that they would use"


@cache
def method_table() -> dict[str, tuple[str, str, str]]:
    """What each method is, what a client keeps, and what it is tested with, from docs/methods/index.md."""
    rows = re.findall(
        r"^\| \[`([\w+]+)`\]\(\S+\) \| (.+?) \| (.+?) \| (.+?) \|$", (DOCS / "methods/index.md").read_text(), re.M
    )
    return {name: (about, keeps, tested) for name, about, keeps, tested in rows}


def method_options(name: str) -> str:
    """The options of a method: its own first, then those that it shares with others, folded."""
    kind, by_name = METHODS[name], {option.name: option for option in options(name).options}
    groups: dict[type, list[OptionInfo]] = {}
    for owner in kind.__mro__:  # the class that says last what a field is
        own = [by_name.pop(field) for field in inspect.get_annotations(owner) if field in by_name]
        if own:
            groups[owner] = own
    first = groups.pop(kind, [])
    parts = [option_table(first) if first else "It has no options of its own."]
    for owner, fields in groups.items():
        title = f"{GROUPS[owner.__name__]}: {', '.join(field.name for field in fields)}"
        table = option_table(fields).replace("\n", "\n    ")
        parts.append(f'??? note "{title}"\n\n    {table}')
    return "\n\n".join(parts)


def option_table(fields: Iterable[OptionInfo]) -> str:
    """Fields as a table: what they mean, what is allowed, the default."""
    lines = ["| option | meaning | allowed | default |", "|---|---|---|---|"]
    for f in fields:
        default = "*required*" if f.required else "none" if f.default is None else f"`{cell(f.initial)}`"
        lines.append(f"| `{f.name}` | {cell(f.meaning)} | {cell(f.allowed)} | {default} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """Text that can stand in a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("\n", " ")


def recipe_reference() -> str:
    """Every field of a recipe, section by section, from the dataclasses that check it."""
    hints, meanings = typing.get_type_hints(Recipe, include_extras=True), field_docs(Recipe)
    plain = [f for f in dataclasses.fields(Recipe) if f.name not in sections() and f.name != "method"]
    top = [
        OptionInfo(f.name, allowed(hints[f.name]), f.default, is_required(f), meanings.get(f.name, "")) for f in plain
    ]
    parts = ["## Top level", option_table(top)]
    for name in sections():
        listed = options(name)
        parts += [f"## [{name}] {{ #{name} }}", listed.about.split("\n\n")[0], option_table(listed.options)]
    return "\n\n".join(parts)


def command_reference() -> Iterator[str]:
    """Every command with its arguments and options, from the parser."""
    top = typer.main.get_command(app)
    yield from _command(top, "sparsona", typer.Context(top, info_name="sparsona"), 2)


def _command(command: typing.Any, path: str, context: typer.Context, level: int) -> Iterator[str]:
    children = getattr(command, "commands", {})
    if path != "sparsona":
        yield f"{'#' * level} {path} {{ #{path.replace(' ', '-')} }}\n"
        yield f"{plain_help(command.help or '')}\n"
    if not children:
        yield f"```text\n{path} {' '.join(command.collect_usage_pieces(context))}\n```\n"
        rows = [row for p in command.params if (row := _parameter(p, context))]
        if rows:
            yield "| | |\n|---|---|\n" + "\n".join(rows) + "\n"
        if command.epilog:
            examples = command.epilog.split("\n\n")[1:]  # the first line says what they are
            yield "```sh\n" + "\n".join(examples) + "\n```\n"
    for name, child in children.items():
        inner = typer.Context(child, info_name=name, parent=context)
        yield from _command(child, f"{path} {name}", inner, level if path == "sparsona" else level + 1)


def _parameter(parameter: typing.Any, context: typer.Context) -> str | None:
    if parameter.name == "help" or getattr(parameter, "hidden", False):
        return None
    if parameter.param_type_name == "argument":
        return f"| `{parameter.make_metavar(context)}` | {cell(plain_help(parameter.help or ''))} |"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    value = "" if parameter.is_flag else f" `{parameter.make_metavar(context)}`"
    default = parameter.default
    shows = default not in (None, False, (), []) and not callable(default)
    end = f" (default: `{shown(default)}`)" if shows else ""
    return f"| {names}{cell(value)} | {cell(plain_help(parameter.help or ''))}{end} |"


def plain_help(text: str) -> str:
    """Help without the terminal's markup, as one paragraph for each blank line."""
    return re.sub(r"\\?\[(/?(bold|cyan|dim|italic|green|yellow))\]", "", text).replace("\\[", "[").strip()


def api_entry(name: str) -> str:
    """The documentation of a name of the front door."""
    module, _, original = sparsona._HOMES[name].partition(":")
    return f"::: {module}.{original or name}\n    options:\n      heading: sparsona.{name}\n      toc_label: {name}"
