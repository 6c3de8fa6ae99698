"""Python processes that are forks of one that has imported torch, so that they start in a quarter of the time.

    python -I -S forked.py ADDRESS -c CODE WORDS | -m MODULE WORDS | FILE WORDS

does what `python` does with the words after ADDRESS, with the environment and in the folder it is called in. This
process is only the client: it hands words, environment and streams to the server, waits, and ends as the new process
does. If it is killed, so is the other. `helpers.processes` starts the server (`serve`).

The server has imported what transformers imports, and nothing of Hugging Face: that reads the environment when it is
imported, so each process does it by itself.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from types import ModuleType

# What takes most of the time of `import transformers`.
PRELOADED = "torch torch._dynamo torch.distributed.fsdp torch.distributed.tensor torch.onnx numpy pandas scipy.stats"
PRELOADED += " pyarrow.parquet sklearn.metrics safetensors.torch tokenizers httpx yaml jinja2 regex psutil PIL.Image"
BY_ITSELF = ("plainformer", "transformers", "huggingface_hub", "datasets", "accelerate")


def call_server(address: str, words: list[str]) -> int:
    """The client: the exit status of the process. Where there are other options than these, Python itself runs."""
    if words[0] == "-u":
        os.environ["PYTHONUNBUFFERED"], words = "1", words[1:]
    if words[0].startswith("-") and words[0] not in ("-c", "-m"):
        os.execv(sys.executable, [sys.executable, *words])
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        job = json.dumps({"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}).encode()
        socket.send_fds(server, [len(job).to_bytes(8, "big")], [0, 1, 2])
        server.sendall(job)
        return int.from_bytes(server.recv(1), "big")


def serve(listener: socket.socket, command: str) -> None:
    """Fork for each client, until the standard input ends. The command is what starts a client, instead of Python."""
    del sys.path[0]  # this file's own folder
    sys.executable = command
    for name in PRELOADED.split():
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    assert not {name.partition(".")[0] for name in sys.modules} & {*BY_ITSELF}
    gc.freeze()  # the memory stays shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    while listener in select.select([listener, 0], [], [])[0]:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            keep(client)
        client.close()


def keep(client: socket.socket) -> None:
    """Run a client's process and tell it the end; kill the process, with all that it started, if the client ends."""
    size, streams, _, _ = socket.recv_fds(client, 8, 3)
    job = b""
    while len(job) < int.from_bytes(size, "big"):
        job += client.recv(1 << 20)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = os.fork()
    if process == 0:
        os.setsid()
        client.close()
        os._exit(run(streams, **json.loads(job)))
    ended = os.pidfd_open(process)
    if client in select.select([client, ended], [], [])[0]:
        os.killpg(process, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with contextlib.suppress(OSError):
        client.send((status % 256).to_bytes(1, "big"))
    os._exit(0)


def run(streams: list[int], words: list[str], folder: str, environment: dict[str, str]) -> int:
    """What a new interpreter does; the exit status."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=bool(environment.get("PYTHONUNBUFFERED")))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    option = words[0] if words[0] in ("-c", "-m") else ""
    program, sys.argv = words[bool(option)], words[:1] + words[1 + bool(option) :]
    first = {"-c": "", "-m": folder}.get(option, os.path.dirname(os.path.abspath(program)))
    sys.path[:0] = [first, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    try:
        if option == "-c":
            sys.modules["__main__"] = main = ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), main.__dict__)
        elif option == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code
    except BaseException:
        status = traceback.format_exc()
    if isinstance(status, str):  # as `sys.exit` does with a text
        print(status, file=sys.stderr)
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return int(status or 0) % 256


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3])
    else:
        sys.exit(call_server(sys.argv[1], sys.argv[2:]))
