"""A Hugging Face Hub of one's own, on loopback, for tests with the real client.

It speaks the part of the Hub's HTTP that `huggingface_hub` uses for models: accounts, repositories, branches, uploads
(small files inside the commit, large ones through Git LFS before it), and downloads. Everything lives in memory. A
request it does not know is answered with 404 and noted in `unknown`, so that a test can tell what a client missed.

    with HubServer({"hf_ann": "ann"}) as hub:  # a token, and whose it is
        subprocess.run(..., env={**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_ann"})
        hub.repos["ann/model"].files()

Uploads can be broken on purpose: see `HubServer.obstacle`.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE = (".safetensors", ".bin", ".pt", ".pth", ".pkl")  # kept with Git LFS, as the Hub's own .gitattributes says
MODEL = r"(?P<repo>[^/]+/[^/]+)"
NUMBERS = itertools.count()


@dataclass(frozen=True)
class File:
    """A file of a commit. `sha256` is set for one that is kept with LFS."""

    content: bytes
    sha256: str | None = None

    @property
    def pointer(self) -> bytes:
        """What git itself holds: the content, or the LFS pointer to it."""
        if self.sha256 is None:
            return self.content
        lines = ("version https://git-lfs.github.com/spec/v1", f"oid sha256:{self.sha256}", f"size {len(self.content)}")
        return "".join(f"{line}\n" for line in lines).encode()

    @property
    def oid(self) -> str:
        """Git's name for the blob."""
        return hashlib.sha1(b"blob %d\0" % len(self.pointer) + self.pointer).hexdigest()


@dataclass(frozen=True)
class Commit:
    number: int  # stands for author and time, which make git's hashes differ
    parent: str | None
    message: str
    files: dict[str, File]

    @property
    def sha(self) -> str:
        listing = sorted((path, file.oid) for path, file in self.files.items())
        return hashlib.sha1(repr((self.number, self.parent, self.message, listing)).encode()).hexdigest()


@dataclass
class Repo:
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def resolve(self, revision: str) -> str | None:
        """The sha that a branch or a sha stands for."""
        return self.branches.get(revision) or (revision if revision in self.commits else None)

    def add(self, branch: str, message: str, files: dict[str, File]) -> str:
        commit = Commit(next(NUMBERS), self.branches.get(branch), message, files)
        self.commits[commit.sha] = commit
        self.branches[branch] = commit.sha
        return commit.sha

    def files(self, revision: str = "main") -> dict[str, bytes]:
        """The content of every file at a revision, by path."""
        return {path: file.content for path, file in self.commits[self.resolve(revision)].files.items()}


class Refusal(Exception):
    """An error answer: the status, and what the Hub's headers and body say with it."""

    def __init__(self, status: int, message: str, code: str | None = None, **more: str) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.more = status, message, code, more


class HubServer:
    """The server and all that it knows. A context manager; `url` is what `HF_ENDPOINT` should say.

    `obstacle` breaks pushes until it is None again:
        "upload hangs": the second large file is read to the half, then nothing happens any more (`hanging` is set);
        "no space": the second large file is refused;
        "commit breaks": the connection is cut in the middle of the commit.
    """

    def __init__(self, tokens: dict[str, str]) -> None:
        self.tokens = tokens
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}  # what was uploaded to LFS, by sha256
        self.requests: list[str] = []
        self.unknown: list[str] = []
        self.obstacle: str | None = None
        self.hanging, self.closing = threading.Event(), threading.Event()
        self.uploads = 0  # since the last LFS batch
        self.lock = threading.RLock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self.storage = f"http://localhost:{self._http.server_port}/storage"  # as with the Hub, on another host

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()


# Who may do what.


def repo_for(handler: Handler, name: str, *, write: bool = False) -> Repo:
    """The repository, if it is there for whoever asks; a private one does not exist for others."""
    repo, owner = handler.hub.repos.get(name), name.partition("/")[0]
    mine = handler.user == owner
    if repo is None or (repo.private and not mine):
        raise Refusal(404 if handler.user else 401, "Repository not found", "RepoNotFound")
    if write and not mine:
        raise Refusal(403, f"you must be a member of {owner} to write to {name}")
    return repo


def commit_for(repo: Repo, revision: str) -> tuple[str, Commit]:
    sha = repo.resolve(revision)
    if sha is None:
        raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    return sha, repo.commits[sha]


# Answers. Each takes the request and the parts of its path, and returns what becomes JSON.


def whoami(handler: Handler) -> dict:
    if handler.user is None:
        raise Refusal(401, "Invalid username or password.")
    token = {"displayName": "test", "role": "write"}
    return {"type": "user", "name": handler.user, "orgs": [], "auth": {"accessToken": token}}


def create(handler: Handler) -> dict:
    asked = handler.json()
    if handler.user is None:
        raise Refusal(401, "Invalid username or password.")
    owner = asked.get("organization") or handler.user
    if owner != handler.user:
        raise Refusal(403, f'You don\'t have the rights to create a model under the namespace "{owner}".')
    name = f"{owner}/{asked['name']}"
    if name in handler.hub.repos:
        raise Refusal(409, "You already created this model repo", url=f"{handler.hub.url}/{name}")
    repo = handler.hub.repos[name] = Repo(private=bool(asked.get("private") or asked.get("visibility") == "private"))
    repo.add("main", "initial commit", {".gitattributes": File(b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n")})
    return {"url": f"{handler.hub.url}/{name}", "name": name}


def create_branch(handler: Handler, repo: str, branch: str) -> dict:
    found = repo_for(handler, repo, write=True)
    if branch in found.branches:
        raise Refusal(409, f"Reference already exists: {branch}")
    found.branches[branch], _ = commit_for(found, handler.json().get("startingPoint", "main"))
    return {}


def describe(handler: Handler, repo: str, revision: str = "main") -> dict:
    found = repo_for(handler, repo)
    sha, commit = commit_for(found, revision)
    siblings = [{"rfilename": path} for path in commit.files]
    common = {"id": repo, "modelId": repo, "author": repo.partition("/")[0], "tags": [], "downloads": 0, "likes": 0}
    return {**common, "sha": sha, "private": found.private, "gated": False, "disabled": False, "siblings": siblings}


def refs(handler: Handler, repo: str) -> dict:
    branches = repo_for(handler, repo).branches.items()
    listed = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": sha} for name, sha in branches]
    return {"branches": listed, "tags": [], "converts": [], "pullRequests": []}


def tree(handler: Handler, repo: str, revision: str, path: str = "") -> list:
    """Files below `path`, and folders instead of what lies in them unless all is asked for."""
    _, commit = commit_for(repo_for(handler, repo), revision)
    inside = f"{path}/" if path else ""
    below = {name: file for name, file in commit.files.items() if name.startswith(inside)}
    if not below:
        raise Refusal(404, f"{path} does not exist on {revision}", "EntryNotFound")
    deep = handler.query.get("recursive", "").lower() in ("true", "1")
    entries = [entry(name, file) for name, file in below.items() if deep or "/" not in name.removeprefix(inside)]
    folders = {inside + name.removeprefix(inside).partition("/")[0] for name in below if "/" in name[len(inside) :]}
    return entries + [{"type": "directory", "path": name, "oid": "0" * 40, "size": 0} for name in sorted(folders)]


def entry(path: str, file: File) -> dict:
    listed = {"type": "file", "path": path, "oid": file.oid, "size": len(file.content)}
    if file.sha256:
        listed["lfs"] = {"oid": file.sha256, "size": len(file.content), "pointerSize": len(file.pointer)}
    return listed


def harnesses(handler: Handler) -> dict:
    """A list that new clients fetch once a day; it may be empty."""
    return {}


def validate_yaml(handler: Handler) -> dict:
    handler.json()
    return {"errors": [], "warnings": []}


def preupload(handler: Handler, repo: str, revision: str) -> dict:
    """For each file: whether it goes through LFS, and git's name for the one that is there."""
    _, commit = commit_for(repo_for(handler, repo, write=True), revision)
    modes = []
    for asked in handler.json()["files"]:
        there = commit.files.get(asked["path"])
        mode = "lfs" if asked["path"].endswith(LARGE) else "regular"
        oid = (there.sha256 or there.oid) if there else None
        modes.append({"path": asked["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
    return {"files": modes, "commitOid": commit.sha}


def lfs_batch(handler: Handler, repo: str) -> dict:
    """Where to upload each large file that is not here yet."""
    repo_for(handler, repo, write=True)
    handler.hub.uploads = 0
    objects = []
    for wanted in handler.json()["objects"]:
        answer = {"oid": wanted["oid"], "size": wanted["size"], "authenticated": True}
        if wanted["oid"] not in handler.hub.large:
            upload = {"href": f"{handler.hub.storage}/{wanted['oid']}", "header": {}}
            verify = {"href": f"{handler.hub.url}/{repo}.git/info/lfs/verify", "header": {}}
            answer["actions"] = {"upload": upload, "verify": verify}
        objects.append(answer)
    return {"transfer": "basic", "objects": objects}


def lfs_upload(handler: Handler, oid: str) -> dict:
    hub = handler.hub
    with hub.lock:
        hub.uploads += 1
        hindered = hub.uploads > 1
    if hindered and hub.obstacle == "upload hangs":
        hub.hanging.set()
        hub.closing.wait()
        raise ConnectionAbortedError
    content = handler.body()
    if hindered and hub.obstacle == "no space":
        raise Refusal(507, "Insufficient storage")
    if hashlib.sha256(content).hexdigest() != oid:
        raise Refusal(400, "the content does not have the sha256 that was announced")
    hub.large[oid] = content
    return {}


def lfs_verify(handler: Handler, repo: str) -> dict:
    repo_for(handler, repo, write=True)
    asked = handler.json()
    if len(handler.hub.large.get(asked["oid"], b"")) != asked["size"]:
        raise Refusal(404, "no such object, or another size")
    return {}


def commit(handler: Handler, repo: str, revision: str) -> dict:
    """All operations of the request, or none of them."""
    found = repo_for(handler, repo, write=True)
    if handler.hub.obstacle == "commit breaks":
        handler.rfile.read(int(handler.headers["Content-Length"]) // 2)
        raise ConnectionAbortedError
    operations = [json.loads(line) for line in handler.body().splitlines() if line.strip()]
    header = next(operation["value"] for operation in operations if operation["key"] == "header")
    with handler.hub.lock:
        sha, before = commit_for(found, revision)
        if header.get("parentCommit") not in (None, sha):
            raise Refusal(412, "A commit has happened since. Please refresh and try again.")
        files = dict(before.files)
        for operation in operations:
            apply(handler.hub, files, operation["key"], operation["value"])
        sha = found.add(revision, header["summary"], files)
    return {"success": True, "commitOid": sha, "commitUrl": f"{handler.hub.url}/{repo}/commit/{sha}", "hookOutput": ""}


def apply(hub: HubServer, files: dict[str, File], key: str, value: dict) -> None:
    path = value.get("path", "")
    if key == "file":
        files[path] = File(base64.b64decode(value["content"]))
    elif key == "lfsFile":
        if len(hub.large.get(value["oid"], b"")) != value["size"]:
            raise Refusal(400, f"{path}: LFS pointer pointed to a file that does not exist")
        files[path] = File(hub.large[value["oid"]], value["oid"])
    elif key == "deletedFile":
        if files.pop(path, None) is None:
            raise Refusal(404, f"{path}: A file with this name doesn't exist", "EntryNotFound")
    elif key == "deletedFolder":
        for name in [name for name in files if name.startswith(f"{path.rstrip('/')}/")]:
            del files[name]
    elif key != "header":
        raise Refusal(400, f"operation {key!r} is unknown")


def resolve(handler: Handler, repo: str, revision: str, path: str) -> None:
    """A file, or for a large one the way to it."""
    sha, found = commit_for(repo_for(handler, repo), revision)
    file = found.files.get(path)
    if file is None:
        raise Refusal(404, f"{path} is not in {repo} at {revision}", "EntryNotFound")
    headers = {"X-Repo-Commit": sha, "Accept-Ranges": "bytes", "ETag": f'"{file.oid}"'}
    if file.sha256:
        headers |= {"X-Linked-Etag": f'"{file.sha256}"', "X-Linked-Size": str(len(file.content))}
        handler.answer(302, b"", {**headers, "Location": f"{handler.hub.storage}/{file.sha256}"})
    else:
        handler.send_file(file.content, headers)


def download(handler: Handler, oid: str) -> None:
    """A large file. Like the Hub's storage it asks nobody who they are: the way to it is the secret."""
    if oid not in handler.hub.large:
        raise Refusal(404, "no such object")
    handler.send_file(handler.hub.large[oid], {"ETag": f'"{oid}"'})


ROUTES: list[tuple[str, str, Callable]] = [
    ("GET", "/api/whoami-v2", whoami),
    ("GET", "/api/agent-harnesses", harnesses),
    ("POST", "/api/repos/create", create),
    ("POST", "/api/validate-yaml", validate_yaml),
    ("GET", f"/api/models/{MODEL}", describe),
    ("GET", f"/api/models/{MODEL}/revision/(?P<revision>[^/]+)", describe),
    ("GET", f"/api/models/{MODEL}/refs", refs),
    ("GET", f"/api/models/{MODEL}/tree/(?P<revision>[^/]+)", tree),
    ("GET", f"/api/models/{MODEL}/tree/(?P<revision>[^/]+)/(?P<path>.+)", tree),
    ("POST", f"/api/models/{MODEL}/branch/(?P<branch>[^/]+)", create_branch),
    ("POST", f"/api/models/{MODEL}/preupload/(?P<revision>[^/]+)", preupload),
    ("POST", f"/api/models/{MODEL}/commit/(?P<revision>[^/]+)", commit),
    ("POST", f"/{MODEL}[.]git/info/lfs/objects/batch", lfs_batch),
    ("POST", f"/{MODEL}[.]git/info/lfs/verify", lfs_verify),
    ("PUT", "/storage/(?P<oid>[0-9a-f]{64})", lfs_upload),
    ("GET", "/storage/(?P<oid>[0-9a-f]{64})", download),
    ("GET", f"/{MODEL}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", resolve),
]


class Handler(BaseHTTPRequestHandler):
    """One connection: finds the answer to each request and writes it down."""

    hub: HubServer
    protocol_version = "HTTP/1.1"

    def handle_request(self) -> None:
        url = urlsplit(self.path)
        self.query = dict(part.partition("=")[::2] for part in url.query.split("&") if part)
        self.was_read = False
        self.hub.requests.append(f"{self.command} {url.path}")
        try:
            result = self.find(url.path)
            if result is not None:
                self.answer(200, json.dumps(result).encode(), {"Content-Type": "application/json"})
        except Refusal as refusal:
            headers = {"X-Error-Message": refusal.message, "Content-Type": "application/json"}
            headers |= {"X-Error-Code": refusal.code} if refusal.code else {}
            self.answer(refusal.status, json.dumps({"error": refusal.message, **refusal.more}).encode(), headers)
        except OSError:  # the client has gone, or an obstacle wants it to think so of us
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_request

    def find(self, path: str) -> dict | list | None:
        """What the first fitting route says. HEAD is GET without its body."""
        method = "GET" if self.command == "HEAD" else self.command
        for verb, pattern, function in ROUTES:
            match = re.fullmatch(pattern, path)
            if verb == method and match:
                return function(self, **{name: unquote(part) for name, part in match.groupdict().items()})
        self.hub.unknown.append(f"{self.command} {path}")
        raise Refusal(404, f"{self.command} {path}: this Hub does not know that")

    @property
    def user(self) -> str | None:
        """Whose token the request carries; a token that nobody has is refused."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.hub.tokens:
            raise Refusal(401, "Invalid credentials in Authorization header")
        return self.hub.tokens.get(token)

    def body(self) -> bytes:
        self.was_read = True
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def json(self) -> dict:
        return json.loads(self.body() or b"{}")

    def send_file(self, content: bytes, headers: dict[str, str]) -> None:
        """The whole, or the part that a Range header asks for."""
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        headers = {**headers, "Content-Type": "application/octet-stream"}
        if wanted is None:
            return self.answer(200, content, headers)
        start, end = int(wanted[1]), min(int(wanted[2] or len(content) - 1), len(content) - 1)
        if start > end:
            return self.answer(416, b"", {**headers, "Content-Range": f"bytes */{len(content)}"})
        return self.answer(
            206, content[start : end + 1], {**headers, "Content-Range": f"bytes {start}-{end}/{len(content)}"}
        )

    def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        if not self.was_read:
            self.body()  # or what is left of it would be taken for the next request
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing: `requests` has it all."""
