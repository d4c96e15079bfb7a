"""A key ceremony as one file that can be reviewed before it is run, and the plan that it comes to."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from ca.kinds import KeyType
from ca.making import DEFAULT_ORGANISATION, Plan
from ca.policy import TrustDomain
from ca.profile import ISSUING_LIFETIME, ROOT_LIFETIME
from inventory.document import Model, RelativePath
from inventory.errors import BadInput

_MAX_ROOT_DAYS, _MAX_ISSUING_DAYS = 9131, 3652


def _check_token_uri(text: str) -> str:
    from ca.token_uri import TokenUri

    return TokenUri.parse(text).text


TokenUriText = Annotated[str, AfterValidator(_check_token_uri)]
"""A PKCS#11 URI (RFC 7512) with token or serial, object and module-path, and no PIN."""


class RootPart(Model):
    """The root: made here, or kept elsewhere."""

    key: KeyType = KeyType.P384
    """The kind of its key."""
    lifetime_days: Annotated[int, Field(ge=366, le=_MAX_ROOT_DAYS)] = ROOT_LIFETIME.days
    """Of its certificate; at most 25 years."""
    passphrase_file: RelativePath | None = None
    """Holds its key's passphrase; none: it is asked for."""
    out: RelativePath | None = None
    """The folder that its key goes to, such as a USB stick; none: root-take-away/ in the authority's folder."""
    request_out: RelativePath | None = None
    """For a root kept elsewhere: where the request for it to sign is written; alone in this part."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        given = self.model_fields_set & {"key", "lifetime_days", "passphrase_file", "out"}
        if self.request_out is not None and given:
            raise ValueError(
                f"a root kept elsewhere (request_out) leaves no say in its {', '.join(sorted(given))}"
            )
        return self


class IssuingPart(Model):
    """The issuing authority."""

    key: KeyType = KeyType.P256
    """The kind of its key; a token's is p256 or p384."""
    lifetime_days: Annotated[int, Field(ge=31, le=_MAX_ISSUING_DAYS)] = ISSUING_LIFETIME.days
    """Of its certificate, at most 10 years; where the root is kept elsewhere, that root decides."""
    passphrase_file: RelativePath | None = None
    """Holds its key's passphrase; none: it is asked for."""
    token: TokenUriText | None = None
    """A key in a token, and the module that reaches it."""
    pin_file: RelativePath | None = None
    """Holds the token's PIN; none: it is asked for."""

    @model_validator(mode="after")
    def _one_secret(self) -> Self:
        if self.token is None and self.pin_file is not None:
            raise ValueError("a pin_file belongs to a token, and none is named")
        if self.token is not None and self.passphrase_file is not None:
            raise ValueError("a token has a PIN (pin_file) and no passphrase_file")
        if self.token is not None and self.key is KeyType.ED25519:
            raise ValueError("a token's key is p256 or p384")
        return self


class Ceremony(Model):
    """ceremony.yaml: all that `node-ca init` would otherwise be told by its options, or ask for."""

    organisation: str = DEFAULT_ORGANISATION
    """Stands in the authority's own names."""
    trust_domain: TrustDomain | None = None
    """For a minimal policy; beside a policy, both must agree."""
    policy: RelativePath | None = None
    """The file of a policy; this or a trust_domain is needed."""
    root: RootPart = RootPart()
    """The root."""
    issuing: IssuingPart = IssuingPart()
    """The issuing authority."""

    @model_validator(mode="after")
    def _something_to_certify(self) -> Self:
        if self.trust_domain is None and self.policy is None:
            raise ValueError("a trust_domain or a policy is needed")
        return self

    @property
    def plan(self) -> Plan:
        """What is to be made."""
        return Plan(
            policy_file=self.policy,
            trust_domain=self.trust_domain,
            organisation=self.organisation,
            root_key=self.root.key,
            issuing_key=self.issuing.key,
            root_lifetime=timedelta(days=self.root.lifetime_days),
            issuing_lifetime=timedelta(days=self.issuing.lifetime_days),
            root_out=self.root.out,
        )

    @property
    def secret_file(self) -> Path | None:
        """What holds the secret of the issuing key."""
        return self.issuing.pin_file if self.issuing.token is not None else self.issuing.passphrase_file


def of_options(
    *,
    policy: Path | None,
    trust_domain: str | None,
    organisation: str | None,
    key_type: KeyType | None,
    root_key_type: KeyType | None,
    root_out: Path | None,
    request_out: Path | None,
    token: str | None,
) -> Ceremony:
    """The ceremony that the options of a command line come to.

    Raises:
        BadInput: they contradict each other; all is told at once.
    """
    root = {"key": root_key_type, "out": root_out, "request_out": request_out}
    try:
        return Ceremony.model_validate(
            {
                "organisation": organisation if organisation is not None else DEFAULT_ORGANISATION,
                "trust_domain": trust_domain,
                "policy": policy,
                "root": {key: value for key, value in root.items() if value is not None},
                "issuing": {"key": key_type or KeyType.P256, "token": token},
            }
        )
    except ValidationError as error:
        reasons = [str(detail["msg"]).removeprefix("Value error, ") for detail in error.errors()]
        raise BadInput(
            "no authority was made",
            why="\n".join(reasons),
            next_step="correct the options; node-ca init --help explains them",
        ) from None
