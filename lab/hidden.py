"""Which directories of this machine a node must not see: homes, the lab's state, CA directories, the work tree."""

import os
import pwd
from collections.abc import Iterable, Mapping
from pathlib import Path

# A mask over one of these would leave a node without its programs.
_NEVER = frozenset(
    map(
        Path, ("/", "/usr", "/usr/local", "/etc", "/var", "/opt", "/bin", "/lib", "/sbin", "/var/lib", "/nix")
    )
)
_MARKS = (".git", "pyproject.toml")
_CA_DEFAULT = Path("/var/lib/muster")


def hidden_directories(
    state_dir: Path, *, environ: Mapping[str, str] = os.environ, cwd: Path | None = None
) -> tuple[Path, ...]:
    """The directories to hide, real paths, none inside another one.

    `state_dir` holds the nodes; beside it lie the secrets of the lab's roles.
    """
    wanted = {state_dir, state_dir.absolute().parent, _CA_DEFAULT, Path("/home"), Path("/root"), _home()}
    for variable in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "MUSTER_CA_DIR"):
        wanted.add(Path(environ.get(variable) or "/root"))
    for variable in ("MUSTER_SITE", "MUSTER_PASSPHRASE_FILE", "MUSTER_SSH_KEY"):
        wanted.add(Path(environ.get(variable) or "/root/none").parent)
    wanted |= set(_work_trees(cwd or Path.cwd()))
    return outermost(_real(path) for path in wanted if path.is_absolute() and _real(path) not in _NEVER)


def outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The paths that lie inside none of the others."""
    kept: list[Path] = []
    for path in sorted(set(paths)):
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return tuple(kept)


def _real(path: Path) -> Path:
    # Unlike Path.resolve it does not fail where this user may not look.
    return Path(os.path.realpath(path))


def _home() -> Path:
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path("/root")


def _work_trees(cwd: Path) -> Iterable[Path]:
    """The tree of this source, and the one that the lab was started in."""
    for start in (_real(Path(__file__)).parent, _real(cwd)):
        for folder in (start, *start.parents):
            # Unlike Path.exists it does not fail where this user may not look.
            if any(os.path.exists(folder / mark) for mark in _MARKS):  # noqa: PTH110
                yield folder
                break
