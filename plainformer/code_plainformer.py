"""The code that is saved beside a model, kept in memory.

The code of a stranger lies in a cache, and somebody may empty it while the model trains. transformers copies the code
before it writes the weights, so the training would be lost with it.
"""

import contextlib
import os
import sys
import tempfile
from pathlib import Path

from transformers.dynamic_module_utils import get_relative_import_files

KEPT: dict[str, dict[str, bytes]] = {}  # by file: that file and those it imports from beside it, by name


def keep_code(module: str) -> None:
    """Keep the code of a module. A module without a file, as that of a notebook, has none that could be saved."""
    file = _find_file(module)
    if file is not None and file not in KEPT:
        KEPT[file] = _read_from_disk(file)


def read_code(file: str | os.PathLike) -> dict[str, bytes]:
    """A file and those it imports from beside it, by name: from the disk, or as they were when they were imported.

    Empty where neither is known.
    """
    return _read_from_disk(file) or KEPT.get(os.fspath(file), {})


def write_code(code: dict[str, bytes], folder: str | os.PathLike) -> None:
    """Write files by name into a folder, which is made where it does not exist."""
    os.makedirs(folder, exist_ok=True)
    for name, content in code.items():
        Path(folder, name).write_bytes(content)


def restore_code(module: str) -> None:
    """Write the code of a module from memory, if it was deleted, to where transformers will look for it.

    That is where it was; or, where nobody may write there any more, a temporary folder.
    """
    file = _find_file(module)
    if file is None or file not in KEPT or _read_from_disk(file):
        return
    for make_folder in (lambda: os.path.dirname(file), tempfile.mkdtemp):
        with contextlib.suppress(OSError):
            folder = make_folder()
            write_code(KEPT[file], folder)
            restored = os.path.join(folder, os.path.basename(file))
            KEPT[restored] = KEPT[file]
            sys.modules[module].__file__ = restored
            return


def _find_file(module: str) -> str | None:
    return None if module == "__main__" else getattr(sys.modules.get(module), "__file__", None)


def _read_from_disk(file: str | os.PathLike) -> dict[str, bytes]:
    """Empty where one of the files is missing."""
    with contextlib.suppress(OSError):
        paths = map(Path, [file, *get_relative_import_files(file)])
        return {path.name: path.read_bytes() for path in paths}
    return {}
