"""pytest as one file: what a sandbox needs to run it, where no package is installed.

Takes the pytest of this environment, returns a zip archive from which an interpreter imports it.
Compiled modules lie beside the sources, so that an interpreter of the same version starts fast and
any other still works.
"""

import importlib.util
import io
import py_compile
import tempfile
import zipfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

_PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "py")
_HIGHLIGHTER = "pygments"
"""pytest imports a few of its modules; the hundreds of others stay out."""
_HIGHLIGHTER_MODULES = (
    "*.py",
    "filters/__init__.py",
    "formatters/__init__.py",
    "formatters/_mapping.py",
    "formatters/terminal.py",
    "lexers/__init__.py",
    "lexers/_mapping.py",
    "lexers/diff.py",
    "lexers/python.py",
    "styles/__init__.py",
    "styles/_mapping.py",
)


@lru_cache(maxsize=1)
def build_pytest_bundle() -> bytes:
    """Pack pytest and what it imports; the first call of a process takes about two seconds.

    Raises:
        ModuleNotFoundError: pytest, or a package that it needs, is not installed.
    """
    archive = io.BytesIO()
    with (
        zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as bundle,
        tempfile.TemporaryDirectory() as folder,
    ):
        for name, source in _modules():
            compiled = py_compile.compile(
                str(source),
                cfile=str(Path(folder) / "module.pyc"),
                dfile=name,
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
            assert compiled is not None
            bundle.write(compiled, f"{name}c")
            bundle.write(source, name)
    return archive.getvalue()


def _modules() -> Iterator[tuple[str, Path]]:
    """Yield the name in the archive and the source of each module."""
    for package in (*_PACKAGES, _HIGHLIGHTER):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"{package} is not installed: pip install pytest")
        if spec.submodule_search_locations is None:
            yield f"{package}.py", Path(spec.origin)
            continue
        root = Path(spec.origin).parent
        patterns = _HIGHLIGHTER_MODULES if package == _HIGHLIGHTER else ("**/*.py",)
        for pattern in patterns:
            for source in sorted(root.glob(pattern)):
                yield f"{package}/{source.relative_to(root).as_posix()}", source
