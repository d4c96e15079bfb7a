"""Walls made by bubblewrap, for an ordinary user."""

from collections.abc import Sequence

from lab.walled import View


class Bubblewrap:
    """Shuts commands in with bubblewrap; `program` is where it lies."""

    name = "bubblewrap"

    def __init__(self, program: str) -> None:
        """Nothing is tried yet."""
        self._program = program

    def around(self, view: View) -> Sequence[str]:
        """See `lab.walled.Walls`."""
        walls = [
            *(self._program, "--die-with-parent"),
            *("--unshare-user", "--uid", "0", "--gid", "0", "--cap-drop", "ALL"),
            *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--hostname", view.hostname),
            *("--bind", str(view.disk), "/"),
        ]
        for path in view.programs:
            walls += ["--ro-bind", str(path), str(path)]
        if view.before is not None:
            walls += ["--ro-bind", str(view.before), str(view.before_at)]
        for path in view.masked:
            walls += ["--tmpfs", str(path)]
        walls += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/sys"]  # noqa: S108
        walls += ["--ro-bind", str(view.uuid), "/sys/class/dmi/id/product_uuid"]
        for device, real in view.devices:
            walls += ["--ro-bind", str(real), str(real), "--symlink", str(real), str(device)]
        return [*walls, "--chdir", "/root", "--"]
