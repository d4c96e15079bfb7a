"""The commands that an engine is started with: exactly these words, and no command for a shape it cannot have."""

from pathlib import Path

import pytest

from inventory.document import loads
from inventory.errors import BadFile, BadInput
from inventory.server_config import ServedModel, ServerConfig
from verify.engines import Host, starts

ONE, TWO = Host("gpu-01", "10.0.0.1", "ib0"), Host("gpu-02", "10.0.0.2", "ib0")
ALONE = Host("gpu-01", "10.0.0.1")
PLACE = "server.yaml: llama"


def model(**other: object) -> ServedModel:
    facts = {
        "name": "llama",
        "source": "hf://meta-llama/Llama-3.3-70B-Instruct",
        "engine": "vllm",
        "nnodes": 2,
        "tensor_parallel": 8,
        "pipeline_parallel": 2,
    }
    return ServedModel.model_validate({**facts, **other})


def lines(served: ServedModel, *hosts: Host) -> list[tuple[str, str, str]]:
    return [(start.node, start.role, start.line) for start in starts(served, hosts, place=PLACE)]


def test_vllm_on_two_nodes_is_a_ray_head_a_ray_worker_and_one_server() -> None:
    before = "GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0"

    assert lines(model(), ONE, TWO) == [
        (
            "gpu-01",
            "ray-head",
            (
                f"VLLM_HOST_IP=10.0.0.1 {before} ray start --head --port=6379 --node-ip-address=10.0.0.1 --num-gpus=8"
                " --block"
            ),
        ),
        (
            "gpu-02",
            "ray-worker",
            (
                f"VLLM_HOST_IP=10.0.0.2 {before} ray start --address=10.0.0.1:6379 --node-ip-address=10.0.0.2"
                " --num-gpus=8 --block"
            ),
        ),
        (
            "gpu-01",
            "serve",
            (
                f"VLLM_HOST_IP=10.0.0.1 {before} vllm serve meta-llama/Llama-3.3-70B-Instruct --served-model-name llama"
                " --tensor-parallel-size 8 --pipeline-parallel-size 2 --distributed-executor-backend ray"
                " --host 10.0.0.1 --port 8000"
            ),
        ),
    ]


def test_vllm_on_one_node_needs_no_ray() -> None:
    served = model(nnodes=1, tensor_parallel=4, pipeline_parallel=1)

    assert lines(served, ALONE) == [
        (
            "gpu-01",
            "serve",
            (
                "VLLM_HOST_IP=10.0.0.1 vllm serve meta-llama/Llama-3.3-70B-Instruct --served-model-name llama"
                " --tensor-parallel-size 4 --pipeline-parallel-size 1 --distributed-executor-backend mp"
                " --host 10.0.0.1 --port 8000"
            ),
        )
    ]


def test_sglang_on_two_nodes_is_one_command_with_two_ranks() -> None:
    before = "GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0 python3 -m sglang.launch_server"
    shape = "--model-path meta-llama/Llama-3.3-70B-Instruct --served-model-name llama --tp-size 16"
    shape += " --pp-size 1 --nnodes 2"
    served = model(engine="sglang", tensor_parallel=16, pipeline_parallel=1)

    assert lines(served, ONE, TWO) == [
        (
            "gpu-01",
            "serve",
            f"{before} {shape} --node-rank 0 --dist-init-addr 10.0.0.1:20000 --host 10.0.0.1 --port 30000",
        ),
        (
            "gpu-02",
            "worker",
            f"{before} {shape} --node-rank 1 --dist-init-addr 10.0.0.1:20000 --host 10.0.0.2 --port 30000",
        ),
    ]


def test_sglang_on_one_node_has_no_rendezvous() -> None:
    served = model(engine="sglang", nnodes=1, tensor_parallel=2, pipeline_parallel=1, source="/models/a b")

    assert lines(served, ALONE) == [
        (
            "gpu-01",
            "serve",
            (
                "python3 -m sglang.launch_server --model-path '/models/a b' --served-model-name llama --tp-size 2"
                " --pp-size 1 --host 10.0.0.1 --port 30000"
            ),
        )
    ]


def test_the_sim_engine_is_one_process_for_each_shard() -> None:
    served = model(engine="sim", tensor_parallel=2, pipeline_parallel=1, source="sim://echo")
    shape = "python3 -m verify.probe.sim --dist-init-addr 10.0.0.1:20000 --nnodes 2"

    assert lines(served, ONE, TWO) == [
        ("gpu-01", "serve", f"{shape} --node-rank 0 --nodes gpu-01,gpu-02 --host 10.0.0.1 --port 30000"),
        ("gpu-02", "worker", f"{shape} --node-rank 1 --nodes gpu-01,gpu-02"),
    ]


def test_an_ipv6_leader_stands_in_brackets() -> None:
    one, two = Host("gpu-01", "fd00::1"), Host("gpu-02", "fd00::2")

    assert "--address='[fd00::1]:6379'" in lines(model(), one, two)[1][2].replace(
        "'--address=", "--address='"
    )


@pytest.mark.parametrize("hosts", [(ONE,), (ONE, TWO, ALONE)])
def test_as_many_nodes_as_the_model_has_must_be_named(hosts: tuple[Host, ...]) -> None:
    with pytest.raises(BadInput, match="no command was made") as refused:
        starts(model(), hosts, place=PLACE)

    assert refused.value.what.startswith(PLACE)
    assert f"{len(hosts)} nodes were named" in refused.value.why


def test_a_stage_that_would_end_inside_a_node_is_refused_for_sglang() -> None:
    three = (ONE, TWO, Host("gpu-03", "10.0.0.3"))
    served = model(engine="sglang", nnodes=3, tensor_parallel=3, pipeline_parallel=2)
    with pytest.raises(BadInput, match="sglang cannot serve llama") as refused:
        starts(served, three, place=PLACE)

    assert "pipeline_parallel 2 and nnodes 3" in refused.value.why


def test_ranks_that_do_not_fill_the_nodes_are_refused_with_line_and_column() -> None:
    text = (
        "models:\n  - name: llama\n    source: a\n    engine: vllm\n    nnodes: 3\n"
        "    tensor_parallel: 4\n    pipeline_parallel: 2\n"
    )
    with pytest.raises(BadFile) as refused:
        loads(text, ServerConfig, name="server.yaml", base=Path())

    assert "server.yaml:2" in str(refused.value)
    assert "8 ranks (tensor_parallel x pipeline_parallel) do not spread evenly over 3 nodes" in str(
        refused.value
    )
