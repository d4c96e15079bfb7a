"""What the tests of verify share: one good identity, made once."""

import pytest

from verify.probe.tls import Contexts, Identity, contexts

from .identities import Authority, authority, identity


@pytest.fixture(scope="session")
def lab() -> Authority:
    return authority()


@pytest.fixture(scope="session")
def good(lab: Authority, tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return identity(tmp_path_factory.mktemp("identity"), by=lab)


@pytest.fixture(scope="session")
def good_contexts(good: Identity) -> Contexts:
    return contexts(good)
