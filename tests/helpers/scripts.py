"""Scripts run within the test's own process, which has imported already what takes most of their time."""

import contextlib
import io
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path
from unittest import mock

import torch
import transformers


def run_main(file: Path, *words: object) -> subprocess.CompletedProcess:
    """What `python FILE WORDS` gives, in `stdout` all that it prints; what it changes for the process is undone."""
    command, output = [os.fspath(file), *map(str, words)], io.StringIO()
    verbosity, threads = transformers.logging.get_verbosity(), torch.get_num_threads()
    with (
        mock.patch.object(sys, "argv", command),
        mock.patch.object(sys, "path", [os.fspath(file.parent), *sys.path]),
        mock.patch.dict(os.environ),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        try:
            runpy.run_path(os.fspath(file), run_name="__main__")
            code = 0
        except SystemExit as error:
            code = error.code
        except Exception:
            code = traceback.format_exc()
        finally:
            transformers.logging.set_verbosity(verbosity)
            transformers.logging.enable_progress_bar()
            torch.set_num_threads(threads)
    if not isinstance(code, (int, type(None))):  # `sys.exit` with a text prints it and gives 1
        output.write(f"{code}\n")
        code = 1
    return subprocess.CompletedProcess(command, int(code or 0), output.getvalue())
