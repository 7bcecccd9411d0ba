"""Reads the imports of a package from its source: which of them point the wrong way, and which form a cycle.

Imports inside functions and under TYPE_CHECKING count as well. A relative import is the same as an absolute one.
A package's own `__init__` counts as one of its modules; that an import of `a.b` also runs `a/__init__` does not count.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Import:
    module: str
    """The importing module, relative to the package: `engine.execution`, or `engine.__init__`."""
    imported: str
    where: str
    """File and line."""

    def __str__(self) -> str:
        return f"{self.where}: {self.module} imports {self.imported}"


@dataclass(frozen=True)
class Package:
    name: str
    root: Path
    modules: Mapping[str, Path] = field(default_factory=dict)

    @staticmethod
    def named(name: str) -> Package:
        """A package that can be imported; this does not import it."""
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"{name!r} is no package that is found here")
        return Package.at(Path(next(iter(spec.submodule_search_locations))), name)

    @staticmethod
    def at(root: Path, name: str) -> Package:
        modules = {".".join(path.relative_to(root).with_suffix("").parts): path for path in sorted(root.rglob("*.py"))}
        return Package(name, root, modules)

    def imports(self) -> Iterator[Import]:
        """The imports from one module of this package to another."""
        for module, path in self.modules.items():
            for node in ast.walk(ast.parse(path.read_text(), str(path))):
                for name in self._names(module, node):
                    imported = self._module_of(name)
                    if imported is not None and imported != module:
                        where = f"{path.relative_to(self.root.parent)}:{getattr(node, 'lineno', 0)}"
                        yield Import(module, imported, where)

    def _names(self, module: str, node: ast.AST) -> Iterator[str]:
        """The full names that a statement imports."""
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                inside = f"{self.name}.{module}".split(".")
                base = ".".join(filter(None, (*inside[: -node.level], base)))
            yield from (f"{base}.{alias.name}" for alias in node.names)

    def _module_of(self, name: str) -> str | None:
        """The module of this package that holds a full name, if one does."""
        parts = name.split(".")
        if parts[0] != self.name:
            return None
        for end in range(len(parts), 0, -1):
            module = ".".join(parts[1:end])
            found = next((each for each in (module, f"{module}.__init__".lstrip(".")) if each in self.modules), None)
            if found:
                return found
        return None


def wrong_imports(package: Package, layers: Sequence[str]) -> list[str]:
    """The imports that point from a layer to a higher one, and the modules that no layer holds.

    The first layer is the lowest. `spec` holds the module `spec`, or the package `spec` with everything in it;
    `spec worker` are two parts of one layer, which import nothing of each other.
    """
    heights = {part: height for height, layer in enumerate(layers) for part in layer.split()}

    def part_of(module: str) -> str | None:
        return next((part for part in heights if f"{module}.".startswith(f"{part}.")), None)

    lost = [f"{module} is in no layer" for module in package.modules if part_of(module) is None]
    wrong = []
    for each in package.imports():
        lower, upper = part_of(each.imported), part_of(each.module)
        if lower and upper and lower != upper and heights[lower] >= heights[upper]:
            wrong.append(str(each))
    return lost + wrong


def cycles(package: Package) -> list[str]:
    """The cycles of imports between the modules, and between the packages, that lie beside each other."""
    edges: dict[str, dict[str, dict[str, Import]]] = {}
    for each in package.imports():
        folder, ours, theirs = _beside(each.module, each.imported)
        edges.setdefault(folder, {}).setdefault(ours, {}).setdefault(theirs, each)
    return [line for folder in sorted(edges) for line in _cycles_of(edges[folder])]


def _beside(module: str, imported: str) -> tuple[str, str, str]:
    """The smallest package that both are in, and the parts of it that hold them."""
    left, right = module.split("."), imported.split(".")
    common = 0
    while left[common] == right[common]:
        common += 1
    return ".".join(left[:common]), left[common], right[common]


def _cycles_of(edges: Mapping[str, Mapping[str, Import]]) -> list[str]:
    """One cycle through each part that is in any, the shortest, each cycle once."""
    found: dict[frozenset[str], str] = {}
    for start in sorted(edges):
        if way := _way_back(edges, start):
            found.setdefault(frozenset(each.where for each in way), "; ".join(map(str, way)))
    return [*found.values()]


def _way_back(edges: Mapping[str, Mapping[str, Import]], start: str) -> list[Import]:
    """The shortest way along imports from a part to itself."""
    ways: dict[str, list[Import]] = {start: []}
    waiting = [start]
    for part in waiting:
        for following, each in edges.get(part, {}).items():
            if following == start:
                return [*ways[part], each]
            if following not in ways:
                ways[following] = [*ways[part], each]
                waiting.append(following)
    return []
