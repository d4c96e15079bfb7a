"""A real SSH node for tests that writes down every session, and that can be ended at any step of its scripts."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.require import need_command
from tests.sshd import Sshd, sshd

# Both streams pass by, as they are inside the encryption. `run` is what the command is read by.
_WRAPPER = """\
#!/bin/bash
here={here}
n=$(($(ls "$here" | grep -c '^exec\\.') + 1))
printf '%s\\n' "$SSH_ORIGINAL_COMMAND" >"$here/exec.$n"
cat >"$here/in.$n"
if [ -s "$here/path" ]; then sed -i "s|^PATH=.*|PATH=$(cat "$here/path")|" "$here/in.$n"; fi
if [ -s "$here/stepping" ]; then
    export MUSTER_STEP_EXEC=$n MUSTER_STEP_HERE=$here
    cat "$here/prelude" "$here/in.$n" | bash --posix > >(tee "$here/out.$n") 2> >(tee "$here/err.$n" >&2)
    exit
fi
bash -c "$SSH_ORIGINAL_COMMAND" <"$here/in.$n" > >(tee "$here/out.$n") 2> >(tee "$here/err.$n" >&2)
"""

# bash calls the trap before each simple command. A step is one that changes something.
_PRELUDE = """\
step_at=0
step_look() {
    case "$BASH_COMMAND" in
        mkdir* | mv* | ln* | rm* | chown* | chmod* | cp* | sync* | shred* | openssl*req* | openssl*genpkey* \\
            | openssl*verify* | "openssl base64"* | put* | sh* | timeout*) ;;
        *) return 0 ;;
    esac
    step_at=$((step_at + 1))
    printf '%s %s %s\\n' "$MUSTER_STEP_EXEC" "$step_at" "${BASH_COMMAND%%$'\\n'*}" >>"$MUSTER_STEP_HERE/steps"
    [ "$MUSTER_STEP_EXEC $step_at" = "$(cat "$MUSTER_STEP_HERE/at")" ] || return 0
    case "$(cat "$MUSTER_STEP_HERE/stepping")" in
        shell) kill -9 $$ ;;
        link)
            up=$PPID
            until case "$(cat /proc/$up/comm)" in sshd*) true ;; *) false ;; esac; do
                up=$(cut -d' ' -f4 /proc/$up/stat)
            done
            : >"$MUSTER_STEP_HERE/at"
            kill -9 "$up"
            ;;
    esac
    return 0
}
set -T
trap step_look DEBUG
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A command of the node's scripts that changes something: the `at`th one of the session's `run`th command."""

    run: int
    at: int
    command: str


@dataclass(frozen=True, slots=True)
class Node:
    """One that listens on loopback; `folder` has what passed by."""

    server: Sshd
    folder: Path

    def forget(self) -> None:
        """Begin anew: as if nobody had ever logged in."""
        for file in self.folder.iterdir():
            if file.name not in {"wrapper", "prelude"}:
                file.unlink()

    @property
    def commands(self) -> int:
        """How many commands were run."""
        return len(list(self.folder.glob("exec.*")))

    @property
    def heard(self) -> bytes:
        """All that went over the wire in either direction, and what was run there."""
        return b"\n".join(file.read_bytes() for file in sorted(self.folder.glob("*.[0-9]")))

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps that were counted."""
        lines = (self.folder / "steps").read_text().splitlines()
        parts = (line.split(" ", 2) for line in lines)
        return tuple(Step(int(run), int(at), command) for run, at, command in parts)

    def step(self, end: str = "none", at: Step | None = None) -> None:
        """Count the steps from now on; before `at`, end the `shell` or cut the `link`."""
        self.forget()
        (self.folder / "stepping").write_text(f"{end}\n")
        (self.folder / "at").write_text("" if at is None else f"{at.run} {at.at}\n")

    def path(self, *folders: Path) -> None:
        """Let the scripts find commands there, and only there."""
        (self.folder / "path").write_text(":".join(map(str, folders)))

    def quiet(self) -> None:
        """Wait until nothing of ours runs there any more."""
        until = time.monotonic() + 120
        while time.monotonic() < until and self._busy():
            time.sleep(0.02)

    def _busy(self) -> bool:
        mark = f"MUSTER_STEP_HERE={self.folder}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes() and (folder / "cmdline").read_bytes():
                    return True
            except OSError:
                continue
        return False


@contextmanager
def node(folder: Path, *, options: str = "") -> Iterator[Node]:
    """Serve until the block ends."""
    need_command("bash")
    folder.mkdir(mode=0o700)
    passed = folder / "passed"
    passed.mkdir()
    wrapper = passed / "wrapper"
    wrapper.write_text(_WRAPPER.format(here=passed))
    wrapper.chmod(0o700)
    (passed / "prelude").write_text(_PRELUDE)
    with sshd(folder / "sshd", options=f"ForceCommand {wrapper}\n{options}") as server:
        yield Node(server, passed)


def tools(folder: Path, *absent: str) -> Path:
    """A folder with all the commands of this machine but some; more can be written into it."""
    folder.mkdir()
    for name in (
        *("cat", "cut", "date", "getent", "grep", "head", "id", "install", "ln", "mkdir", "mv", "openssl"),
        *("python3", "readlink", "rm", "sed", "sh", "shred", "sync", "tail", "timeout", "tr", "uname"),
        *("chmod", "chown", "cp", "flock", "ls", "sleep"),
    ):
        found = shutil.which(name)
        if found is not None and name not in absent:
            (folder / name).symlink_to(found)
    return folder
