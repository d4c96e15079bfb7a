"""A contract for import-linter: a package that imports itself and the standard library, nothing else."""

import sys
from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class StandardLibraryOnly(Contract):
    """What runs on a node must find everything there.

    `package` names the package; `newer_than` lists modules of the standard library that the oldest Python it
    must run on does not have, and which count as foreign.
    """

    package = fields.StringField()
    newer_than = fields.ListField(subfield=fields.StringField(), required=False, default=[])

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002, FBT001 - their signature
        """Look at every direct import; what the package does not import itself it cannot reach."""
        own = {str(self.package)} | graph.find_descendants(str(self.package))
        known = sys.stdlib_module_names - {str(module) for module in _listed(self.newer_than)}
        foreign = [
            f"{importer} -> {imported}"
            for importer in sorted(own)
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if imported not in own and imported.partition(".")[0] not in known
        ]
        return ContractCheck(kept=not foreign, metadata={"foreign": foreign})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Name each import that is neither of the package nor of the standard library."""
        for line in check.metadata["foreign"]:
            output.print_error(f"{line} is neither of {self.package} nor of the standard library", bold=False)
        output.new_line()


def _listed(value: Any) -> list[Any]:
    """What a declared field holds once it was parsed."""
    return list(value or [])
