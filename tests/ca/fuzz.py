"""What tests of any input share: how often they try, how bytes are mangled, and what is asked for."""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

_TIMES = int(os.environ.get("MUSTER_FUZZ", "1"))  # read at once: the tests' environment is scrubbed


def attempts(count: int) -> settings:
    """So many attempts, or MUSTER_FUZZ times as many."""
    return settings(
        max_examples=count * _TIMES,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@st.composite
def mangled(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes with some of them changed, taken out, put in or repeated."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        length = draw(st.integers(0, 4))
        match draw(st.sampled_from(["change", "cut", "insert", "repeat"])):
            case "change":
                data[at : at + length] = draw(st.binary(min_size=length, max_size=length))
            case "cut":
                del data[at : at + length]
            case "insert":
                data[at:at] = draw(st.binary(max_size=4))
            case _:
                data[at:at] = data[max(0, at - 16 * length) : at]
    return bytes(data)


NODES = st.one_of(
    st.sampled_from(
        ["gpu-01", "gpu-02", "a", "a" * 63, "a" * 64, "GPU-01", "10.20.0.11", "gpu_01", "-a", "*", ""]
    ),
    st.text(max_size=70),
)
ADDRESSES = st.one_of(
    st.none(),
    st.ip_addresses(v=4, network="10.0.0.0/16").map(str),
    st.ip_addresses().map(str),
    st.sampled_from(
        ["10.0.0.7/16", "010.0.0.7", "10.0.0.7%eth0", "fe80::1%eth0", "::ffff:10.0.0.7", "10.0.7"]
    ),
    st.text(max_size=20),
)
