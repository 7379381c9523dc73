# SPDX-License-Identifier: Apache-2.0
"""Replacement of a function in modules that a capture imports, whatever finds and loads them."""
import importlib.abc
import sys


class Imports(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Within this context the imports of some modules end with a replacement in them; then all modules have the function itself."""

    def __init__(self, wants, name, replacement):
        """@wants(module's name): True for such modules. @name: of the function. @replacement(module, function)."""
        self.wants, self.name, self.replacement = wants, name, replacement
        self.loaders, self.replaced = {}, {}  # of modules under way; id of a replacement -> (itself, the function)

    def __enter__(self):
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *fault):
        sys.meta_path.remove(self)
        for module in list(sys.modules.values()) if self.replaced else ():
            own = getattr(module, "__dict__", {})
            for name, value in list(own.items()):  # a module may import it under another name
                if id(value) in self.replaced:
                    own[name] = self.replaced[id(value)][1]

    def find_spec(self, name, path, target=None):
        if not self.wants(name):
            return None
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target) if not isinstance(finder, Imports) and hasattr(finder, "find_spec") else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    self.loaders[name], spec.loader = spec.loader, self
                return spec
        return None

    def create_module(self, spec):
        return self.loaders[spec.name].create_module(spec)

    def exec_module(self, module):
        loader = self.loaders.pop(module.__spec__.name)
        module.__loader__ = module.__spec__.loader = loader
        loader.exec_module(module)
        plain = vars(module).get(self.name)
        if plain is not None:
            replaced = self.replacement(module, plain)
            self.replaced[id(replaced)] = replaced, plain
            setattr(module, self.name, replaced)
