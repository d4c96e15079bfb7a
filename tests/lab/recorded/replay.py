"""A scene, replayed: each recorded call is made, and its answer held against the recorded one."""

import re
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

from lab.hardware import size_in_bytes
from tests.lab.recorded import scenes
from tests.lab.recorded.answers import ANSWERS
from tests.lab.recorded.compare import differences, plain
from tests.lab.recorded.world import (
    PVE_VM_USER,
    ROLE,
    SECRET,
    SEPARATE,
    TIMEOUT_S,
    USER,
    Answer,
    World,
)

_UPID = re.compile(r"UPID:[^/\"]+:")


class Replay:
    """One scene in its own world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._ours: dict[str, str] = {}  # recorded UPIDs and digests -> the lab's

    def run(self, text: str) -> Iterator[tuple[int, set[str]]]:
        """Each number, and where its answer differs."""
        for step in scenes.steps(text):
            if step.number < 0:
                self.arrange(step.who, *step.words)
            elif step.number in ANSWERS:
                yield step.number, self._step(step.number, step.who)

    @staticmethod
    def numbers(text: str) -> set[int]:
        return {step.number for step in scenes.steps(text) if step.number >= 0}

    def arrange(self, what: str, *words: str) -> None:
        """Bring the world into the state that the recorded host was in, where no recorded call did."""
        getattr(self, f"_{what}")(*words)

    def _step(self, number: int, who: str) -> set[str]:
        real = ANSWERS[number]
        ours = self._ask(who, real)
        self._learn(real.get("body"), ours.body)
        found = {
            *(["status"] if real["status"] != ours.status else []),
            *(["reason"] if plain(real["reason"]) != plain(ours.reason) else []),
        }
        theirs, mine = plain(real.get("body")), plain(ours.body)
        for one, other in ((theirs, mine), (mine, theirs)):
            if one and other and one.get("total") == "<number>" and "total" in other:
                other["total"] = "<number>"
        return found | set(differences(theirs, mine))

    def _ask(self, who: str, real: dict[str, Any]) -> Answer:
        path = urllib.parse.unquote(real["path"])
        path = _UPID.sub(lambda upid: self._ours.get(upid[0], upid[0]), path)
        params = {key: self._ours.get(str(value), value) for key, value in real.get("params", {}).items()}
        deadline = time.monotonic() + TIMEOUT_S
        wait = path.endswith("/status") and (real.get("body") or {}).get("data", {}) is not None
        while True:
            ours = self.world.call(who, real["method"], urllib.parse.quote(path), params)
            task = (ours.body or {}).get("data") if wait and "/tasks/" in path else None
            if (task or {}).get("status") != "running" or time.monotonic() > deadline:
                return ours
            time.sleep(0.01)

    def _learn(self, real: Any, ours: Any) -> None:
        if not isinstance(real, dict) or not isinstance(ours, dict):
            return
        theirs, mine = real.get("data"), ours.get("data")
        if isinstance(theirs, str) and isinstance(mine, str) and theirs.startswith("UPID:"):
            self._ours[theirs] = mine
        if isinstance(theirs, dict) and isinstance(mine, dict) and {"digest"} <= theirs.keys() & mine.keys():
            self._ours[theirs["digest"]] = mine["digest"]

    # Arrangements

    def _vm(self, vmid: str, number: str = "80", *, template: bool = False, size: str = "") -> None:
        config = dict(ANSWERS[int(number)]["body"]["data"])
        del config["digest"]
        if size:
            config["scsi0"] = re.sub("size=.*", f"size={size}", config["scsi0"])
        name = config["name"]

        def add() -> None:
            self.world.pve.add_vm(int(vmid), name, node="pve1", template=template, config=config)
            kept = self.world.pve.storages["local"].setdefault("volumes", {})
            for key in ("scsi0", "ide2"):
                if key in config:
                    volume = config[key].split(",")[0].removeprefix("local:")
                    size = size_in_bytes(config[key].rpartition("=")[2]) if key == "scsi0" else 4 << 20
                    kept[volume] = {
                        "content": "images",
                        "format": "qcow2",
                        "size": size,
                        "vmid": int(vmid),
                        "ctime": 1,
                        "used": 1,
                        "parent": None,
                    }

        self.world.do(add)

    def _template(self, size: str = "") -> None:
        self._vm("9000", "288", template=True, size=size)

    def _grant(self, path: str) -> None:
        self.world.do(lambda: self.world.pve.grant(USER, path, *ROLE))

    def _granted(self) -> None:
        for path in ("/vms", "/storage/local", "/sdn/zones/localnetwork"):
            self._grant(path)

    def _mute(self) -> None:
        """From now on, no guest agent answers."""
        self.world.pve.agent_ping_s = 0.05
        self.world.backend.mute.set()

    def _again(self, number: str) -> None:
        """A start whose answer was not recorded, only its task's."""
        upid = ANSWERS[int(number)]["body"]["data"]["upid"]
        vmid = upid.split(":")[6]
        who = "token" if "!t1" in upid else "root"
        ours = self.world.call(who, "POST", f"/nodes/pve1/qemu/{vmid}/status/start")
        assert ours.body
        self._ours[upid] = ours.body["data"]

    def _storage(self, name: str, **options: Any) -> None:
        self.world.do(
            lambda: self.world.pve.storages.update({name: {"type": "dir", "files": set(), **options}})
        )

    def _iso(self) -> None:
        self._storage("isoonly", path="/mnt/iso", content="iso", active=1)
        self._grant("/storage/isoonly")

    def _tiny(self) -> None:
        self.world.do(lambda: self.world.pve.storages.pop("isoonly", None))
        self._storage("tiny", path="/mnt/tiny", content="images", active=1, avail=41943040, total=41943040)

    def _gone(self) -> None:
        self.world.settled()
        self.world.do(lambda: self.world.pve.storages["tiny"].update(active=0))

    @staticmethod
    def _later() -> None:
        time.sleep(0.25)

    def _slow(self) -> None:
        self.world.pve.copy_s = 4.0  # what is asked meanwhile is asked in time on a busy machine too

    def _slower(self) -> None:
        """A clone outlasts whoever waits for its lock file."""
        self.world.pve.copy_s = 6.0
        self.world.pve.lock_wait = 0.4

    def _separate(self) -> None:
        self._granted()
        self.world.do(lambda: self.world.pve.add_token(SEPARATE, SECRET, {}))

    def _user(self) -> None:
        self.world.do(lambda: self.world.pve.grant(SEPARATE, "/vms/9000", *PVE_VM_USER))

    def _clone(self, vmid: str, name: str) -> None:
        path = "/nodes/pve1/qemu/9000/clone"
        assert self.world.call("token", "POST", path, {"newid": vmid, "name": name}).status == 200
        self.world.settled()

    def _settled(self) -> None:
        self.world.settled()

    def _other(self) -> None:
        self.world.do(lambda: self.world.pve.add_node("pve2", online=False))
