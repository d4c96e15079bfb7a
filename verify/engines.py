"""The exact commands that an engine would be started with for a model of server.yaml; nothing is run here.

Flags as vLLM and Ray (docs.vllm.ai, "Parallelism and Scaling"; docs.ray.io, `ray start`) and SGLang (docs.sglang.io,
"Multi-Node Deployment" and "Server Arguments") have them.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from inventory.errors import BadInput
from inventory.server_config import ServedModel

RAY_PORT = 6379
VLLM_PORT = 8000
SGLANG_PORT = 30000
DIST_PORT = 20000
_HUB = "hf://"


@dataclass(frozen=True, slots=True)
class Host:
    """One node as the engine's other nodes see it.

    interface: the network device of `address`, where known; gloo and NCCL guess another one without it.
    """

    name: str
    address: str
    interface: str | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """One command on one node; `role` says what it is there for."""

    node: str
    role: str
    environment: tuple[tuple[str, str], ...]
    argv: tuple[str, ...]

    @property
    def line(self) -> str:
        """As a POSIX shell reads it."""
        before = [f"{name}={shlex.quote(value)}" for name, value in self.environment]
        return " ".join([*before, shlex.join(self.argv)])


def starts(model: ServedModel, hosts: Sequence[Host], *, place: str) -> tuple[Start, ...]:
    """What is started, in this order; the first host leads.

    `place` names the model's entry, file and all, for messages.

    Raises:
        BadInput: the hosts are not as many as the model's nodes, or the engine cannot have that shape.
    """
    if len(hosts) != model.nnodes:
        raise BadInput(
            f"{place}: no command was made for {model.name}",
            why=f"nnodes is {model.nnodes}, and {len(hosts)} nodes were named",
            next_step=f"name {model.nnodes}, the one that leads first",
        )
    return {"vllm": _vllm, "sglang": _sglang, "sim": _sim}[model.engine](model, hosts, place)


def _vllm(model: ServedModel, hosts: Sequence[Host], _place: str) -> tuple[Start, ...]:
    """Ray is the runtime between nodes: a head, workers that join it, then one `vllm serve` beside the head."""
    lead, per_node = hosts[0], model.world_size // model.nnodes
    serve = [*("vllm", "serve", _source(model), "--served-model-name", model.name)]
    serve += ["--tensor-parallel-size", str(model.tensor_parallel)]
    serve += ["--pipeline-parallel-size", str(model.pipeline_parallel)]
    backend = "mp" if model.nnodes == 1 else "ray"
    serve += ["--distributed-executor-backend", backend, "--host", lead.address, "--port", str(VLLM_PORT)]
    ray: list[Start] = []
    for host in hosts if model.nnodes > 1 else ():
        where = (
            ("--head", f"--port={RAY_PORT}") if host is lead else (f"--address={at(lead.address, RAY_PORT)}",)
        )
        words = (*where, f"--node-ip-address={host.address}", f"--num-gpus={per_node}", "--block")
        role = "ray-head" if host is lead else "ray-worker"
        ray.append(Start(host.name, role, _vllm_environment(host), ("ray", "start", *words)))
    return (*ray, Start(lead.name, "serve", _vllm_environment(lead), tuple(serve)))


def _vllm_environment(host: Host) -> tuple[tuple[str, str], ...]:
    return (("VLLM_HOST_IP", host.address), *_sockets(host))


def _sglang(model: ServedModel, hosts: Sequence[Host], place: str) -> tuple[Start, ...]:
    """The same command on every node but for its rank; the first one serves, the others answer /health alone."""
    nodes, stages = model.nnodes, model.pipeline_parallel
    if nodes % stages and stages % nodes:
        raise BadInput(
            f"{place}: sglang cannot serve {model.name}",
            why=f"pipeline_parallel {stages} and nnodes {nodes} do not divide one another: a stage ends inside a node",
            next_step="choose pipeline_parallel so that each stage has whole nodes, or each node whole stages",
        )
    made = []
    for rank, host in enumerate(hosts):
        argv = ["python3", "-m", "sglang.launch_server", "--model-path", _source(model)]
        argv += ["--served-model-name", model.name]
        argv += ["--tp-size", str(model.tensor_parallel), "--pp-size", str(stages)]
        if nodes > 1:
            argv += ["--nnodes", str(nodes), "--node-rank", str(rank)]
            argv += ["--dist-init-addr", at(hosts[0].address, DIST_PORT)]
        argv += ["--host", host.address, "--port", str(SGLANG_PORT)]
        made.append(Start(host.name, "serve" if rank == 0 else "worker", _sockets(host), tuple(argv)))
    return tuple(made)


def _sim(model: ServedModel, hosts: Sequence[Host], _place: str) -> tuple[Start, ...]:
    """One process for each shard; it has one address to listen on, and needs no GPU."""
    per_node = model.world_size // model.nnodes
    made = []
    for rank in range(model.world_size):
        host = hosts[rank // per_node]
        argv = ["python3", "-m", "verify.probe.sim", "--dist-init-addr", at(hosts[0].address, DIST_PORT)]
        argv += ["--nnodes", str(model.world_size), "--node-rank", str(rank)]
        argv += ["--nodes", ",".join(each.name for each in hosts)]
        if rank == 0:
            argv += ["--host", host.address, "--port", str(SGLANG_PORT)]
        made.append(Start(host.name, "serve" if rank == 0 else "worker", (), tuple(argv)))
    return tuple(made)


def _sockets(host: Host) -> tuple[tuple[str, str], ...]:
    """Without these, gloo and NCCL take the interface of the host's own name, or the first one."""
    if host.interface is None:
        return ()
    return (("GLOO_SOCKET_IFNAME", host.interface), ("NCCL_SOCKET_IFNAME", host.interface))


def _source(model: ServedModel) -> str:
    return model.source.removeprefix(_HUB)


def at(address: str, port: int) -> str:
    """Address and port, an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
