"""Dockerfiles read and carried out without a container engine, as far as Python goes.

A stage is a folder that commands get as their root, in a mount namespace of their own: the system's
folders and the interpreter are mounted in it, read-only, and ``/venv`` is a fresh environment,
which stands for the Python of the image. So commands run as they are written, with absolute paths.
Mounting and changing the root need root; `why_not_here` says what is in the way.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BASE = Path(sys.base_prefix)
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc", "/proc", "/dev")
_ISOLATED = ("unshare", "--mount")  # no fork: to kill the command is to kill what it became


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile, ``RUN`` and what follows."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


def read_dockerfile(path: Path) -> tuple[list[Instruction], dict[str, list[Instruction]]]:
    """What stands before the first ``FROM``, and the instructions of each stage by its name."""
    lines = [line for line in path.read_text().splitlines() if not re.match(r"\s*#", line)]
    before: list[Instruction] = []
    stages: dict[str, list[Instruction]] = {}
    into = before
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        instruction = Instruction(*line.strip().split(maxsplit=1))
        if instruction.name == "FROM":
            _, _, stage = instruction.words
            into = stages.setdefault(stage, [])
        else:
            into.append(instruction)
    return before, stages


def why_not_here() -> str | None:
    if os.geteuid() != 0:
        return "mounting and changing the root need root"
    probe = [*_ISOLATED, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    if subprocess.run(probe, capture_output=True).returncode != 0:
        return "mounting is not allowed here"
    return None


@dataclass
class Stage:
    """The root of a stage, its settings so far, and what else is mounted there, read-only."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    mounts: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root.mkdir(mode=0o755)
        (self.root / "tmp").mkdir()
        self.env = {"PATH": "/venv/bin:/usr/bin:/bin", "HOME": "/tmp", **self.env}
        self.run([str(BASE / "bin" / "python3"), "-m", "venv", "--without-pip", "/venv"])
        site, pip = self.site_packages(), importlib.metadata.distribution("pip")
        for name in {file.parts[0] for file in pip.files or () if file.parts[0] != ".."}:
            shutil.copytree(str(pip.locate_file(name)), site / name)

    def site_packages(self) -> Path:
        (found,) = self.inside("/venv/lib").glob("python*/site-packages")
        return found

    def inside(self, path: str) -> Path:
        """A path of the stage, from outside."""
        return self.root / path.lstrip("/")

    def command(
        self,
        command: Sequence[str],
        user: str = "0:0",
        env: Mapping[str, str] | None = None,
        noexec: Mapping[str, Path] | None = None,
        cwd: str = "/",
    ) -> list[str]:
        """What runs a command in the stage.

        Args:
            user: numbers of user and group.
            env: all of the environment; the stage's own if it is not given.
            noexec: folders that are copied to read-only, noexec mounts of their own.
            cwd: where in the stage.
        """
        steps = ["set -e"]
        for place, source in {
            **{each: Path(each) for each in SYSTEM if Path(each).exists()},
            str(BASE): BASE,
            **self.mounts,
        }.items():
            inside = self.inside(place)
            steps.append(shlex.join(["mkdir", "-p", str(inside)]))
            steps.append(shlex.join(["mount", "--rbind", str(source), str(inside)]))
            if place not in ("/proc", "/dev"):
                steps.append(shlex.join(["mount", "-o", "remount,bind,ro", str(inside)]))
        for place, source in (noexec or {}).items():
            inside = self.inside(place)
            steps += [
                shlex.join(["mkdir", "-p", str(inside)]),
                "mount -t tmpfs -o mode=755,nosuid,nodev tmpfs /mnt",
                shlex.join(["cp", "-a", f"{source}/.", "/mnt"]),  # it may lie at the same place
                f"mount --move /mnt {shlex.quote(str(inside))}",
                f"mount -o remount,ro,noexec,nosuid,nodev {shlex.quote(str(inside))}",
            ]
        settings = self.env if env is None else env
        change = ["chroot", f"--userspec={user}", "--groups=", str(self.root)]
        inner = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', cwd, *command]
        start = ["env", "-i", *(f"{name}={value}" for name, value in settings.items()), *inner]
        return [*_ISOLATED, "sh", "-c", "\n".join([*steps, shlex.join(["exec", *change, *start])])]

    def run(
        self, command: Sequence[str], check: bool = True, **options: object
    ) -> subprocess.CompletedProcess[str]:
        full = self.command(command, **options)  # type: ignore[arg-type]
        done = subprocess.run(full, capture_output=True, text=True, timeout=300)
        if check:
            assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done

    def copy(self, source: Path, target: str) -> None:
        """``COPY``: a file, or what is in a folder, with modes and times."""
        place = self.inside(target)
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, place, copy_function=shutil.copy2, dirs_exist_ok=True)
        else:
            shutil.copy2(source, place)


def expand(text: str, settings: Mapping[str, str]) -> str:
    """``$NAME`` and ``${NAME}`` as a Dockerfile means them."""
    return re.sub(
        r"\$\{(\w+)\}|\$(\w+)", lambda found: settings.get(found[1] or found[2], ""), text
    )
