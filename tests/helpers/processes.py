"""Processes that a test starts: none outlives its test, whatever keeps it."""

import atexit
import functools
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

# Imported once, by the server that every spawned process is a fork of: in each process it would take five seconds.
PRELOADED = ["torch.distributed.tensor", "accelerate", "plainformer"]

FORKED = Path(__file__).with_name("forked.py")
ISOLATED = Path(__file__).parents[1] / "isolated"


@functools.cache
def fork_server() -> tuple[Path, subprocess.Popen | None]:
    """An environment for Python processes that start fast, and the server of `helpers.forked`, which ends with us."""
    if not hasattr(os, "pidfd_open"):  # not Linux
        return Path(sys.prefix), None
    folder = Path(tempfile.mkdtemp(prefix="forked-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command, address = folder / "bin" / "python", folder / "socket"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{FORKED}" "{address}" "$@"\n')
    command.chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHONPATH"))}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(address))
        listener.listen()
        serve = [sys.executable, FORKED, "serve", str(listener.fileno()), command]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "pass_fds": [listener.fileno()]}
        return folder, subprocess.Popen(serve, env={**inherited, "OMP_NUM_THREADS": "1"}, cwd="/", **streams)


def fast_python() -> Path:
    """An interpreter whose processes need not import torch, and whose `sys.executable` is itself."""
    return fork_server()[0] / "bin" / "python"


def start_process(command: list, **options) -> subprocess.Popen:
    """A process whose output `finish_process` collects. The options are those of `Popen`."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(list(map(str, command)), **{**pipes, **options})


def finish_process(process: subprocess.Popen, timeout: float = 300) -> subprocess.CompletedProcess:
    """Wait for a process; after `timeout` seconds it is killed, with all that it started, and the test fails."""
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_family(process)
        output, errors = process.communicate(timeout=60)
        pytest.fail(f"killed after {timeout} s: {process.args}\n{(output or '')[-3000:]}\n{(errors or '')[-3000:]}")
    except BaseException:  # somebody does not want to wait
        kill_family(process)
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def run_process(command: list, timeout: float = 300, **options) -> subprocess.CompletedProcess:
    """`subprocess.run` with the output as text, and a time limit that holds for what the command starts too."""
    return finish_process(start_process(command, **options), timeout)


def run_tests_alone(file: str) -> None:
    """The tests of a file in tests/isolated, in a process of their own.

    Where OpenVINO, NNCF and ONNX Runtime are loaded together, a process that forks later can crash, as DataLoader does.
    """
    run = run_process([sys.executable, "-m", "pytest", "-n", 0, ISOLATED / file], cwd=ISOLATED.parents[1])
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]


def kill_family(process: subprocess.Popen) -> None:
    """Kill a process and its descendants. Its process group would not do: torchrun starts each worker in a new one."""
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    process.kill()  # first, so that it starts no others
    for descendant in family:
        try:
            descendant.kill()
        except psutil.NoSuchProcess:
            pass


def spawn(work: Callable, *args, timeout: float = 300) -> None:
    """`work(rank, *args)` in two processes; what still runs after `timeout` seconds is killed, and the test fails."""
    multiprocessing.set_forkserver_preload(PRELOADED)
    context = mp.start_processes(work, args=args, nprocs=2, join=False, start_method="forkserver")
    deadline = time.monotonic() + timeout
    try:
        while not context.join(timeout=max(0, deadline - time.monotonic())):
            late = [rank for rank, process in enumerate(context.processes) if process.is_alive()]
            if late and time.monotonic() >= deadline:
                pytest.fail(f"of {work.__module__}.{work.__name__}, processes {late} still ran after {timeout} s")
    finally:
        for process in context.processes:
            process.kill()
            process.join()


def meet(rank: int, folder: str) -> None:
    """Join the group of two processes. Gloo names what it waited for, if that is over before `spawn` loses patience."""
    limit = timedelta(seconds=200)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=limit)
