"""The version and the requirements of kohort-demo, from Kohort's own files."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parents[2]
SOURCE = (ROOT / "src" / "kohort" / "__init__.py").read_text()
(VERSION,) = re.findall(r'^__version__ = "(.+)"$', SOURCE, re.MULTILINE)
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]

setup(version=VERSION, install_requires=[f"kohort[spark]=={VERSION}", *GROUPS["demo"]])
