"""One run that adopts: every VM is looked at and shown, one question is asked, then each is adopted by itself."""

from dataclasses import replace

from inventory.errors import BadInput, MusterError
from provision.adopt import Adopting, Which
from provision.adopt_look import Look
from provision.run import Result, Run, answered_no
from provision.tasks import Tools


class Adoption(Run):
    """The same as a run that makes VMs, but that Proxmox is only read."""

    def adopt(self, adopting: Adopting, which: Which) -> tuple[Result, ...]:
        """Adopt the VMs; one that is refused or fails does not stop the others.

        Raises:
            BadInput: nobody can be asked, or the site file names no key to sign tickets.
            Refused: the answer was no.
        """
        if self._site.ticket is None and not self._wish.plan_only:
            raise BadInput(
                "nothing was adopted",
                why="the site file names no key to sign tickets",
                next_step="add ticket.signing_key to the site file",
            )
        looks: dict[str, Look] = {}
        results = [self._seen(name, adopting, which, looks) for name in self._wish.names]
        if self._wish.plan_only:
            return tuple(results)
        what = ", ".join(f"{look.headline} as {name}" for name, look in looks.items())
        if looks and not self._confirm(f"adopt {what}?"):
            raise answered_no()

        def carry_out(result: Result, tools: Tools) -> Result:
            if result.error is not None:
                return result
            if result.name not in looks:
                return self._told(result)
            try:
                with self._store.lease(result.name, "provision-node --adopt", say=tools.console.warn):
                    made = adopting.carry_out(looks[result.name], tools)
            except MusterError as error:
                return replace(result, node=self._store.get(result.name), error=error)
            warnings = (*result.warnings, *made.warnings)
            return self._told(replace(result, node=made.node, changed=True, warnings=warnings))

        if self._many is None:
            raise ValueError("a run that adopts is given what works on several nodes")
        return self._many.each(results, carry_out, name_of=lambda result: result.name)

    def _seen(self, name: str, adopting: Adopting, which: Which, looks: dict[str, Look]) -> Result:
        """The result of looking at one VM, which a person is shown."""
        tell = self._console.data if self._wish.plan_only else self._console.say
        try:
            look = adopting.look(name, which, profile=self._wish.profile)
        except MusterError as error:
            return Result(name, node=self._store.get(name), error=error)
        node = self._store.get(name)
        if look is None:
            tell(f"{name}: no changes")
            return Result(name, node=node)
        looks[name] = look
        tell(f"{name}: {look.headline} is to be adopted; nothing in Proxmox is changed")
        for line in look.lines():
            tell(f"  {line}")
        return Result(name, node=node, warnings=tuple(look.warnings()), adopts=look.to_json())
