"""The phases of a rotation, as the command line names them; imported without anything heavy."""

from enum import StrEnum


class Phase(StrEnum):
    """What is done next."""

    PREPARE = "prepare"
    DISTRIBUTE = "distribute"
    ACTIVATE = "activate"
    RETIRE = "retire"
