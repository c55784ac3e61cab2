"""Dump folders: made of hand-written listings, and real ones."""

import tarfile
from pathlib import Path

import pytest
from timing_listings import call, listing, write_dump

DATA = Path(__file__).parent / "data"

# Python before 3.11.4 has no filters; the archives are our own.
SAFELY = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


@pytest.fixture
def kernel_dump(tmp_path):
    """Makes a dump of a top level that calls one kernel made of the given bundles."""

    def make(*bundles: object, args: tuple[str, ...] = (), prologue: tuple = ()) -> Path:
        top = listing(*prologue, call("k", *args))
        return write_dump(tmp_path / "dump", {"TLP": top, "k": listing(*bundles, entry="k")})

    return make


@pytest.fixture(scope="session")
def real_dumps(tmp_path_factory) -> dict[str, Path]:
    """Dumps of small programs from both supported versions, by "version/program"."""
    found = {}
    for archive in sorted(DATA.glob("*.tar.gz")):
        version = archive.name.removesuffix(".tar.gz")
        folder = tmp_path_factory.mktemp(version)
        with tarfile.open(archive) as tar:
            tar.extractall(folder, **SAFELY)
        for program in sorted(folder.iterdir()):
            found[f"{version}/{program.name}"] = program
    return found
