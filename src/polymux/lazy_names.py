"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package.

    Args:
        package: Its name.
        modules: The module that defines each name, with `:` and its name there if that differs.

    Raises:
        AttributeError: (the function) The package has no such name.
    """

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        path, _, original = modules[name].partition(":")
        module = import_module(path)
        found = module if path == f"{package}.{name}" else getattr(module, original or name)
        setattr(sys.modules[package], name, found)  # the next use finds it there
        return found

    return load
