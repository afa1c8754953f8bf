"""Builds the package for pip and other build front ends (PEP 517, PEP 427) with the standard
library alone: `pip install ./clients/python` needs no network and nothing that is installed."""

import base64
import hashlib
import pathlib
import re
import tarfile
import zipfile

HERE = pathlib.Path(__file__).parent
SOURCES = HERE / "src"


def _project():
    """The plain texts of [project] in pyproject.toml; Python 3.9 has no reader of TOML."""
    section = (HERE / "pyproject.toml").read_text().split("[project]\n", 1)[1].split("\n[", 1)[0]
    return dict(re.findall(r'^([a-z-]+) = "(.*)"$', section, re.MULTILINE))


def _metadata():
    project = _project()
    head = {
        "Metadata-Version": "2.1", "Name": project["name"], "Version": project["version"], "Summary": project["description"],
        "License": "Apache-2.0", "Requires-Python": project["requires-python"], "Description-Content-Type": "text/markdown",
    }
    return "".join(f"{name}: {value}\n" for name, value in head.items()) + "\n" + (HERE / "README.md").read_text()


def _stem():
    return f"{_project()['name']}-{_project()['version']}"


def _modules():
    return sorted(p for p in (SOURCES / "fencelock").rglob("*") if p.suffix == ".py" or p.name == "py.typed")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    about = f"{_stem()}.dist-info"
    files = {str(p.relative_to(SOURCES)): p.read_bytes() for p in _modules()}
    files[f"{about}/METADATA"] = _metadata().encode()
    files[f"{about}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: fencelock\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = f"{about}/RECORD"
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    wheel = f"{_stem()}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory, wheel), "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    sdist = f"{_stem()}.tar.gz"
    info = pathlib.Path(sdist_directory, "PKG-INFO")
    info.write_text(_metadata())
    with tarfile.open(pathlib.Path(sdist_directory, sdist), "w:gz") as archive:
        archive.add(info, f"{_stem()}/PKG-INFO")
        for name in ("pyproject.toml", "README.md", "build_backend.py"):
            archive.add(HERE / name, f"{_stem()}/{name}")
        for path in _modules():
            archive.add(path, f"{_stem()}/{path.relative_to(HERE)}")
    info.unlink()
    return sdist
