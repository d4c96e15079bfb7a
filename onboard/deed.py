"""What onboard-node does for a node, and the words for it."""

from enum import StrEnum

from inventory.errors import BadInput


class Deed(StrEnum):
    """What is done for a node."""

    ONBOARD = "onboard"
    RENEW = "renew"
    REFRESH = "refresh"
    DECOMMISSION = "decommission"

    @property
    def words(self) -> tuple[str, str, str, str]:
        """What one agrees to; the same as what was not done; as what a dry run says; and what needs no change."""
        match self:
            case Deed.ONBOARD:
                return "give it an identity", "onboarded", "would be onboarded", "it has its identity"
            case Deed.RENEW:
                return "give it a new key and certificate", "renewed", "would be renewed", "it was renewed"
            case Deed.REFRESH:
                return "bring it lists and bundle", "refreshed", "would be refreshed", "it is up to date"
            case Deed.DECOMMISSION:
                return "END its identity", "decommissioned", "would end", "its identity has ended"


def deed(*, renew: bool, refresh: bool, decommission: bool) -> Deed:
    """What is to be done.

    Raises:
        BadInput: more than one thing is.
    """
    wishes = ((Deed.RENEW, renew), (Deed.REFRESH, refresh), (Deed.DECOMMISSION, decommission))
    chosen = [each for each, wanted in wishes if wanted]
    if len(chosen) > 1:
        raise BadInput(
            "nothing was done",
            why=f"{' and '.join(f'--{each}' for each in chosen)} do not go together",
            next_step="run one after the other",
        )
    return chosen[0] if chosen else Deed.ONBOARD
