"""The house: rooms import downward, no circles, names that tell, and nothing of one dataset below its room."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "reasonknee_hf"
FILES = sorted(PACKAGE.rglob("*.py"))

# From the ground up; a room imports from itself and from those before it. Rooms of one dataset stand above the general
# ones, which are handed its description.
FLOORS = (
    ("errors", "version", "config_names"),
    ("environment",),
    ("hub/disk", "hub/tree"),
    ("hub/wire",),
    ("hub/zips", "hub/trees"),
    ("hub/fs",),
    ("hub",),
    ("volumes",),
    ("look",),
    ("dataset",),
    ("bench", "verify"),
    ("prompting",),
    ("train", "publish"),
    ("running",),
    ("knee", "tumor"),
    ("__init__",),
    ("cli",),
    ("__main__",),
)
ABOVE_ALL = {"knee", "tumor", "cli", "__init__", "__main__"}


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)


MODULES = {module_of(file): file for file in FILES}


@cache
def imports_of(file: Path) -> frozenset[str]:
    """The modules of the package that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "reasonknee_hf":
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                found.add(deeper if deeper in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("reasonknee_hf")}
    # The package itself is always imported first; what matters is what is asked of it.
    return frozenset((found & MODULES.keys()) - {"reasonknee_hf"})


def floor_of(module: str) -> int:
    place = module.removeprefix("reasonknee_hf").removeprefix(".").replace(".", "/") or "__init__"
    for floor in reversed(range(len(FLOORS))):
        for room in FLOORS[floor]:
            if "/" in room and (place == room or place.startswith(f"{room}/")):
                return floor
    top = place.split("/")[0]
    return next(floor for floor, rooms in enumerate(FLOORS) if top in rooms)


def test_no_public_name_is_that_of_a_file_beside_it():
    """Importing the file would put the module in the place of the function that the room gives."""
    for package in {file.parent for file in FILES}:
        room = import_module(".".join(package.relative_to(PACKAGE.parent).parts))
        assert not {file.stem for file in package.glob("*.py")} & set(getattr(room, "__all__", ())), package


def test_rooms_import_downward():
    upward = [
        f"{module} imports {other}"
        for module, file in MODULES.items()
        for other in sorted(imports_of(file))
        if floor_of(other) > floor_of(module)
        or (
            floor_of(other) == floor_of(module)
            and other.split(".")[1] != module.split(".")[1]
            and floor_of(module) > 1
        )
    ]
    # Two rooms of a floor may not know each other, but for training, which reads answers as the benchmark does.
    assert [
        line for line in upward if not re.match(r"reasonknee_hf\.train\S* imports reasonknee_hf\.bench", line)
    ] == []


def test_files_import_in_no_circle():
    graph = {module: imports_of(file) - {module} for module, file in MODULES.items()}
    while leaves := {module for module, needed in graph.items() if not needed & graph.keys()}:
        graph = {module: needed for module, needed in graph.items() if module not in leaves}
    circle = {m: sorted(needed & graph.keys()) for m, needed in graph.items()}
    assert circle == {}


def test_no_file_name_stands_twice():
    names = Counter(file.name for file in FILES if file.stem not in ("__init__", "__main__"))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_file_is_short_enough_to_read(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 410


def test_general_rooms_do_not_speak_of_one_dataset():
    word = re.compile(r"\bknees?\b|moaks|\boai\b|3DReasonKnee|cartilage|meniscus", re.I)
    told = []
    for file in FILES:
        if file.relative_to(PACKAGE).parts[0].removesuffix(".py") in ABOVE_ALL:
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            # An example may name a file or a structure; KneeVolume is the public name of a volume.
            if word.search(re.sub(r"\S*\.nii\S*|\"[^\"]*meniscus[^\"]*\"", "", line)) and ">>>" not in line:
                told.append(f"{file.relative_to(PACKAGE)}:{number}: {line.strip()[:90]}")
    assert told == []


def test_no_docstring_holds_the_debris_of_a_rewrap():
    broken = []
    for file in [*FILES, *sorted(Path(__file__).parent.rglob("*.py"))]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node, clean=False) or ""
                if re.search(r'"[ ]*\n[ ]*"', text):
                    broken.append(f"{file.name}: {getattr(node, 'name', 'module')}")
    assert broken == []


def test_the_map_names_files_that_are_there():
    text = PACKAGE.with_name("ARCHITECTURE.md").read_text(encoding="utf-8")
    named = [
        path for path in re.findall(r"`((?:\w+/)+\w+\.py)`", text) if not path.startswith("reasonknee_hf/")
    ]
    assert len(named) > 10
    assert [
        path for path in named if not (PACKAGE / path).exists() and not (PACKAGE.parent / path).exists()
    ] == []
