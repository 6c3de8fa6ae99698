"""The code that is saved beside a model, kept in memory.

The code of a stranger lies in a cache, and somebody may empty it while the model trains. transformers copies the code
before it writes the weights, so the training would be lost with it.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils import logging

logger = logging.get_logger(__name__)

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


def rescue_code(saved: Any, folder: str | os.PathLike) -> None:
    """Where the code of what is being saved was deleted, write it from memory, and let transformers not look for it.

    Args:
        saved: a configuration or a model.
    """
    file = _find_file(type(saved).__module__)
    if file is None or _read_from_disk(file):
        return
    saved._auto_class = None
    if code := read_code(file):
        write_code(code, folder)
    else:
        logger.warning(f"{file} was deleted, so {folder} has no code of {type(saved).__name__}: copy it there.")


def _find_file(module: str) -> str | None:
    return None if module == "__main__" else getattr(sys.modules.get(module), "__file__", None)


def _read_from_disk(file: str | os.PathLike) -> dict[str, bytes]:
    """Empty where one of the files is missing."""
    with contextlib.suppress(OSError):
        paths = map(Path, [file, *get_relative_import_files(file)])
        return {path.name: path.read_bytes() for path in paths}
    return {}
