"""Pages of the site that are made of something else, and a check of the built site. A hook of mkdocs.

Made: the commands, of the parser; the errors, of `errors.py`; notebooks, with their outputs; and the texts that
lie at the root of the repository. Names in docstrings become links where the name has a place on an API page.
"""

from __future__ import annotations

import argparse
import ast
import html
import importlib
import json
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
EXECUTED = ROOT / "build" / "notebooks"
TEXTS = {"CHANGELOG": "changelog", "ARCHITECTURE": "architecture", "BENCHMARK": "scoring"}


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are made."""
    pages: dict[str, str | bytes] = {
        "reference/commands.md": commands_page(),
        "reference/errors.md": errors_page(),
    }
    for name, page in TEXTS.items():
        pages[f"reference/{page}.md"] = root_text(name)
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        pages |= notebook_pages(notebook.stem)
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


# --- commands --------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Every command with its options, as the parser has them."""
    from reasonknee_hf import cli

    text = ["# Commands", "", cli.__doc__ or ""]
    text += ["", "| command | |", "|---|---|"]
    text += [f"| [`{name}`](#{name}) | {help_text} |" for name, (_, help_text) in cli.COMMANDS.items()]
    for name, (module, help_text) in cli.COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"reasonknee {name}", description=help_text)
        importlib.import_module(module).configure(parser)
        text += ["", f"## {name}", "", *_command(parser)]
        for sub_name, sub in _subcommands(parser):
            text += ["", f"### {name} {sub_name}", "", *_command(sub)]
    return "\n".join(text) + "\n"


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _command(parser: argparse.ArgumentParser) -> list[str]:
    usage = re.sub(r"\s+", " ", parser.format_usage().removeprefix("usage: ")).strip()
    wrapped = textwrap.wrap(
        usage, 84, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    lines = [_cell(parser.description or ""), "", "```text", *wrapped, "```", ""]
    rows = [
        _option(a)
        for a in parser._actions
        if not isinstance(a, argparse._SubParsersAction | argparse._HelpAction)
    ]
    return [*lines, "| argument | meaning |", "|---|---|", *rows] if rows else lines


def _option(action: argparse.Action) -> str:
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar or action.dest}`"
    value = (
        "" if action.nargs == 0 or not action.option_strings else f" {action.metavar or action.dest.upper()}"
    )
    if action.choices is not None and action.option_strings:
        value = " " + ", ".join(f"`{choice}`" for choice in action.choices)
    elif action.choices is not None:
        names += ": " + ", ".join(f"`{choice}`" for choice in action.choices)
    said = (action.help or "") % {**vars(action), "prog": ""}
    return f"| {names}{_cell(value)} | {_cell(said)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


# --- errors ----------------------------------------------------------------------------------------------------


def errors_page() -> str:
    """Every exception: what it means, what to do, and what else catches it."""
    tree = ast.parse((ROOT / "reasonknee_hf" / "errors.py").read_text(encoding="utf-8"))
    text = ["# Errors", "", ast.get_docstring(tree) or "", ""]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = ", ".join(f"`{ast.unparse(base)}`" for base in node.bases)
            text += [f"## {node.name}", "", f"Also: {bases}.", "", ast.get_docstring(node) or "", ""]
    return _linked("\n".join(text))


def _linked(text: str) -> str:
    """Names of errors in brackets are headings of the same page."""
    return re.sub(r"\[`(\w+)`\](?!\[|\()", lambda m: f"[`{m[1]}`](#{m[1].lower()})", text)


# --- texts and notebooks ---------------------------------------------------------------------------------------


def root_text(name: str) -> str:
    """A text at the root of the repository; what it links to is a page of the site, or shown as a path."""
    text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
    for other, page in TEXTS.items():
        text = text.replace(f"]({other}.md", f"]({page}.md")
    return re.sub(
        r"\[([^\]]*)\]\((?!https?://|#)(?!(?:changelog|architecture|scoring)\.md)[^)]*\)", r"\1", text
    )


def notebook_pages(name: str) -> dict[str, str | bytes]:
    """One page and its pictures, of the executed notebook where it was executed, else of the one in git."""
    executed = EXECUTED / f"{name}.ipynb"
    if not executed.exists():
        raise PluginError(f"{executed} is missing: `make docs` executes the notebooks first")
    cells = json.loads(executed.read_text(encoding="utf-8"))["cells"]
    text, files = [], {}
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text.append(source)
            continue
        text.append(f"```python\n{source}\n```")
        for place, output in enumerate(cell["outputs"]):
            shown, picture = _output(output, f"{name}-{number}-{place}")
            text.append(shown)
            files |= {f"notebooks/{file}": content for file, content in picture.items()}
    text.append(f"*This page is the notebook `notebooks/{name}.ipynb` with the outputs of its last run.*")
    return {f"notebooks/{name}.md": "\n\n".join(text) + "\n", **files}


def _output(output: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    import base64

    if output["output_type"] == "stream":
        return _fenced("".join(output["text"])), {}
    data = output.get("data", {})
    if "image/png" in data:
        file = f"{name}.png"
        return f"![Output of the cell above]({file})", {file: base64.b64decode(data["image/png"])}
    if "text/html" in data:
        return f'<div class="output">\n{"".join(data["text/html"])}\n</div>'.replace("\n\n", "\n"), {}
    return _fenced("".join(data.get("text/plain", ""))), {}


def _fenced(text: str) -> str:
    return f"````text\n{text.rstrip()}\n````"


# --- links -----------------------------------------------------------------------------------------------------


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """``[`name`]`` in a docstring is a link where the name has a place on an API page, else the name alone."""
    places = _places()
    here = page.file.dest_uri

    def link(found: re.Match[str]) -> str:
        name = html.unescape(found[1]).split(".")[-1]
        if name not in places:
            return f"<code>{found[1]}</code>"
        to = os.path.relpath(places[name].split("#")[0], os.path.dirname(here) or ".")
        return f'<a href="{to}#{places[name].split("#")[1]}"><code>{found[1]}</code></a>'

    return re.sub(r"\[<code>~?([\w.]+)</code>\](?:\[[\w.]*\])?", link, content)


def api_names() -> dict[str, str]:
    """Every object on the API pages, by its path, with the page it stands on."""
    return {
        target: page.relative_to(ROOT / "docs").as_posix()
        for page in sorted((ROOT / "docs" / "api").glob("*.md"))
        for target in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    }


def _places() -> dict[str, str]:
    from reasonknee_hf import errors

    known = {name: f"reference/errors.html#{name.lower()}" for name in vars(errors) if name.endswith("Error")}
    for target, page in api_names().items():
        known[target.rsplit(".", 1)[1]] = f"{page.removesuffix('.md')}.html#{target}"
    return known


def on_post_build(config: Any) -> None:
    """Every link leads somewhere, and no page asks another machine for a script, a style, a font or a picture.

    Raises:
        PluginError: With all that is wrong.
    """
    site = Path(config["site_dir"])
    pages = {
        path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")
    }
    anchors = {name: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for name, text in pages.items()}
    wrong = []
    for name, text in pages.items():
        if name == "404.html":  # its links are those of a server's root
            continue
        for kind, found in re.findall(r'<[^>]*?\b(href|src)="([^"]*)"', text):
            to = html.unescape(found)
            if re.match(r"(https?:)?//", to):
                tag = re.search(rf'<(\w+)[^>]*{kind}="{re.escape(found)}"', text)
                if tag is not None and tag[1] not in ("a", "meta"):
                    wrong.append(f"{name}: asks {to}")
            elif not to.startswith(("mailto:", "data:", "javascript:")):
                wrong += _dead(name, to, site, anchors)
    if wrong:
        raise PluginError("\n".join(sorted(set(wrong))))


def _dead(page: str, to: str, site: Path, anchors: dict[str, set[str]]) -> list[str]:
    path, _, anchor = to.partition("#")
    target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
    if not (site / target).exists():
        return [f"{page}: no {to}"]
    known = anchors.get(target)
    return [f"{page}: no {to}"] if anchor and known is not None and anchor not in known else []
