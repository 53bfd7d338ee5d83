"""Follows a Dockerfile without Docker: its instructions run in root directories of their own, by chroot.

The base image is stood in for by this machine's own /usr, /etc and Python, mounted and never written. Only what our
Dockerfile uses is known here; anything else is an error.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import string
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools import output, tool

# $1 the root, $2 "ro" for one that cannot be written, then folders to mount as SOURCE:TARGET (read-only) or
# SOURCE:TARGET:rw, then --, then the command
ENTER = """\
mount --make-rprivate /
ip link set lo up
root=$1 mode=$2; shift 2
mount --bind "$root" "$root"
[ "$mode" != ro ] || mount -o remount,bind,ro "$root"
while [ "$1" != -- ]; do
    source=${1%%:*} rest=${1#*:}; target=$root${rest%%:*}; shift
    mount --bind "$source" "$target"
    case $rest in *:rw) ;; *) mount -o remount,bind,ro "$target" ;; esac
done
shift
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
exec chroot "$root" "$@"
"""


def instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    """Each instruction with its words, comments gone and lines joined."""
    lines = [line for line in dockerfile.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, words = line.strip().partition(" ")
            yield name, " ".join(words.split()) if name not in {"HEALTHCHECK", "ENTRYPOINT"} else words.strip()


@dataclass
class Stage:
    """A root directory and what the instructions have set for it."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "0:0"
    volumes: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        prefix = sys.base_prefix
        for name in ("usr", "etc", "proc", "dev", "tmp", "var/lib", "opt", "wheelhouse", prefix.lstrip("/")):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name in ("bin", "sbin", "lib", "lib64"):  # Debian's are links into /usr
            (self.root / name).symlink_to(f"usr/{name}")
        (self.root / "base").mkdir()  # the image's Python is called `python`, Debian's own is not
        (self.root / "base/python").symlink_to(f"{prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}")
        self.environment = {"PATH": "/base:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}

    def run(self, script: str, mounts: Mapping[Path, str], environment: Mapping[str, str], *, mode: str) -> str:
        """Run a shell script in the root as the stage's user; what it printed."""
        uid, gid = self.user.split(":")
        places = [f"{source}:{target}" for source, target in mounts.items()]
        places += ["/usr:/usr", "/etc:/etc"]
        if not sys.base_prefix.startswith("/usr"):
            places.append(f"{sys.base_prefix}:{sys.base_prefix}")
        drop = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--inh-caps=-all"]
        separate = [tool("unshare"), "--mount", "--net", "--pid", "--fork", "--kill-child"]
        enter = ["sh", "-euc", ENTER, "enter", str(self.root), mode, *places, "--"]
        command = [*separate, *enter, *drop, "sh", "-euc", f"cd {shlex.quote(self.folder)}; {script}"]
        return output(*command, env={**self.environment, **environment})


class Image:
    """What a Dockerfile makes of a folder; `wheels` is where pip finds what it would download."""

    def __init__(self, context: Path, folder: Path, wheels: Path) -> None:
        self._context = context
        self._folder = folder
        self._wheels = wheels
        self._arguments: dict[str, str] = {}
        self._stages: dict[str, Stage] = {}
        self.bases: list[str] = []
        for name, words in instructions(context / "Dockerfile"):
            getattr(self, f"_{name.lower()}")(words)

    @property
    def _stage(self) -> Stage:
        return list(self._stages.values())[-1]

    def start(self, script: str) -> str:
        """Run a script as the container would: its user, its environment, its root read-only, its volumes writable."""
        stage = self._stage
        mounts: dict[Path, str] = {}
        for number, volume in enumerate(stage.volumes):
            place = self._folder / f"volume-{number}"
            shutil.copytree(stage.root / volume.lstrip("/"), place)
            owner = (stage.root / volume.lstrip("/")).stat()
            os.chown(place, owner.st_uid, owner.st_gid)
            mounts[place] = f"{volume}:rw"
        return stage.run(script, mounts, {}, mode="ro")

    @property
    def health(self) -> str:
        """The command of HEALTHCHECK."""
        return shlex.join(self._stage.health)

    @property
    def entrypoint(self) -> str:
        """The command of ENTRYPOINT."""
        return shlex.join(self._stage.entrypoint)

    @property
    def user(self) -> str:
        """Whom it runs as."""
        return self._stage.user

    def volume(self, number: int) -> Path:
        """What was written to a volume."""
        return self._folder / f"volume-{number}"

    def _arg(self, words: str) -> None:
        name, _, value = words.partition("=")
        self._arguments[name] = value

    def _from(self, words: str) -> None:
        base, *rest = string.Template(words).substitute(self._arguments).split()
        self.bases.append(base)
        name = rest[1] if rest else f"stage-{len(self._stages)}"
        root = self._folder / name
        root.mkdir()
        self._stages[name] = Stage(root)

    def _workdir(self, words: str) -> None:
        self._stage.folder = words
        (self._stage.root / words.lstrip("/")).mkdir(parents=True)

    def _copy(self, words: str) -> None:
        options = dict(word[2:].split("=", 1) for word in words.split() if word.startswith("--"))
        *sources, target = [word for word in words.split() if not word.startswith("--")]
        origin = self._stages[options["from"]].root if "from" in options else self._context
        place = self._stage.root / self._stage.folder.lstrip("/") / target.lstrip("/")
        for source in sources:
            found = origin / source.lstrip("/")
            if found.is_dir():
                shutil.copytree(found, place, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy(found, place)
        if "chown" in options:
            uid, gid = map(int, options["chown"].split(":"))
            for path in (place, *place.rglob("*")):
                os.chown(path, uid, gid)

    def _run(self, words: str) -> None:
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheelhouse", "PIP_ROOT_USER_ACTION": "ignore"}
        self._stage.run(words, {self._wheels: "/wheelhouse"}, pip, mode="rw")

    def _env(self, words: str) -> None:
        for word in shlex.split(words):
            name, _, value = word.partition("=")
            self._stage.environment[name] = string.Template(value).substitute(self._stage.environment)

    def _user(self, words: str) -> None:
        self._stage.user = words

    def _volume(self, words: str) -> None:
        self._stage.volumes.append(words)

    def _expose(self, words: str) -> None:
        assert words == "14311"

    def _healthcheck(self, words: str) -> None:
        self._stage.health = json.loads(words.partition("CMD")[2])

    def _entrypoint(self, words: str) -> None:
        self._stage.entrypoint = json.loads(words)
