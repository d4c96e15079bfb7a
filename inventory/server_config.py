"""server.yaml: the serving side's models, which the nodes must be able to form replicas of."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from inventory.document import Model, load
from inventory.errors import BadInput


class ServedModel(Model):
    """One model and the shape of its replica."""

    name: Annotated[str, Field(min_length=1)]
    """What verify-node --model calls it."""
    source: Annotated[str, Field(min_length=1)]
    """Where its weights come from; told to the engine, not read by us."""
    engine: Literal["sim", "vllm", "sglang"]
    """What serves it."""
    nnodes: PositiveInt = 1
    """Nodes of one replica; the ranks must spread evenly over them."""
    tensor_parallel: PositiveInt = 1
    """Ways that each layer is split."""
    pipeline_parallel: PositiveInt = 1
    """Stages that the layers are split into."""

    @property
    def world_size(self) -> int:
        """Ranks of one replica: one for each shard of the model."""
        return self.tensor_parallel * self.pipeline_parallel

    @model_validator(mode="after")
    def _ranks_fill_the_nodes(self) -> "ServedModel":
        if self.world_size % self.nnodes:
            raise ValueError(
                f"{self.world_size} ranks (tensor_parallel x pipeline_parallel) do not spread evenly"
                f" over {self.nnodes} nodes"
            )
        return self


class ServerConfig(Model):
    """The whole of server.yaml."""

    models: Annotated[tuple[ServedModel, ...], Field(min_length=1)]
    """The models; no two have one name."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> "ServerConfig":
        names = [model.name for model in self.models]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two models are called {', '.join(twice)}")
        return self


def served_model(file: Path, name: str) -> ServedModel:
    """The model called `name` of a server.yaml.

    Raises:
        BadInput: the file is faulty, or it has no such model.
    """
    models = {model.name: model for model in load(file, ServerConfig).models}
    if name not in models:
        raise BadInput(
            f"{file} has no model {name!r}",
            why=f"its models are {', '.join(models)}",
            next_step=f"choose one of them, or add {name} to {file}",
        )
    return models[name]
