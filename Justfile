# Type ./run RECIPE: it makes .venv first, and needs nothing but python3.

set positional-arguments

# What runs behind it is told to end when just is killed
tied := "$(command -v setpriv >/dev/null && echo setpriv --pdeathsig TERM --)"

export PATH := justfile_directory() / ".venv/bin:" + env("PATH")

# List the recipes
[default]
[private]
list:
    @just --list --unsorted --justfile "{{ justfile() }}"

# Make a VM in the lab, give it an identity, prove it: `./run demo --json`
[no-exit-message]
demo *args:
    @exec {{ tied }} node-lab demo "$@"

# Run the tests that this machine allows; ends with what was not run, and why: `./run test -k ticket`
[no-exit-message]
test *args:
    @exec pytest "$@"

# The long forms of the tests that have a short one in `test`; takes an hour
[no-exit-message]
long *args:
    MUSTER_RANDOM=1 MUSTER_ACROSS_BROKEN=whole MUSTER_FUZZ=50 MUSTER_KILLS=100 MUSTER_TEST_KILLS=200 MUSTER_KILL_MATRIX=whole \
        PROVISION_FLAKY=200 pytest \
        tests/ca tests/onboard/test_kill.py tests/onboard/test_upkeep_kill.py tests/provision/test_flaky.py \
        tests/verify/test_fuzz.py tests/verify/test_across_broken.py "$@"

# What CI checks before the tests: format, lint, types, layers, recipes
check:
    ruff format --check
    ruff check
    mypy
    lint-imports --no-cache --no-logo
    just --fmt --check
    sh -n run
    bash -n .ci/run

# Walk the whole road against a Proxmox of your own: `./run acceptance --site FILE --profile NAME`
[no-exit-message]
acceptance *args:
    @exec {{ tied }} python -m tests.acceptance "$@"

# Put right what tools can put right
fix:
    ruff check --fix
    ruff format
    just --fmt

# Run the tests under coverage, the commands they start included
[no-exit-message]
cover *args:
    coverage erase
    coverage run -m pytest "$@"
    coverage combine --quiet
    coverage report

# Measure ours against a floor or a peer, in ratios: `./run bench start-up --json`
[no-exit-message]
bench *args:
    @exec python -m bench "$@"

# Build the wheel; try every command in empty environments, bare and with each extra
[no-exit-message]
wheel *args:
    @exec python -m tests.wheel "$@"

# Write docs/files.md anew from the models
files:
    python -m tests.reference

# Lock the requirements anew (needs uv): `./run lock --upgrade`
lock *args:
    #!/bin/sh
    set -eu
    command -v uv >/dev/null || { echo 'error: uv is missing; pipx install uv' >&2; exit 2; }
    compile() {
        uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
            --no-emit-index-url --no-header --output-file "$@" pyproject.toml
    }
    # the first one decides every version, for an environment made from another is added to
    compile requirements/dev.txt --extra lab --extra hsm --extra postgres --group pyproject.toml:dev "$@"
    compile requirements/demo.txt --extra lab --extra postgres --group pyproject.toml:run --constraints requirements/dev.txt
    for role in provision onboard hsm verify postgres; do
        compile "requirements/$role.txt" --extra "$role" --constraints requirements/dev.txt
    done
