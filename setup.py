"""Builds the compiled kernels from their Cython sources.

A build that cannot compile fails and says what to install: a wheel without the kernel would work,
at a fiftieth of the speed, and nobody would know. `KOHORT_BUILD_PURE=1` asks for one by name.
"""

import os
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, ExecError, LinkError, PlatformError

# One stable-ABI build serves CPython 3.12 and later; 3.11 gets its own (docs/adr/0002).
STABLE_ABI = sys.version_info >= (3, 12) and not sysconfig.get_config_var("Py_GIL_DISABLED")
PURE = os.environ.get("KOHORT_BUILD_PURE") == "1"
SOURCE = Path("src")
WHAT_TO_INSTALL = """
Kohort's compiled kernel could not be built: {error}

It needs a C compiler and Python's headers:
  Debian, Ubuntu:  apt-get install gcc python3-dev
  Fedora:          dnf install gcc python3-devel
  macOS:           xcode-select --install
  Alpine:          apk add gcc musl-dev python3-dev
To install without it, in pure Python and many times slower, set KOHORT_BUILD_PURE=1.
"""


class BuildKernel(build_ext):
    """build_ext that fails with words."""

    def run(self) -> None:
        try:
            super().run()
        except (CompileError, ExecError, LinkError, PlatformError) as error:
            sys.exit(WHAT_TO_INSTALL.format(error=error))


def extensions() -> list[Extension]:
    """One extension for each .pyx file, with the directives that all of them share."""
    if PURE:
        print("kohort: KOHORT_BUILD_PURE=1, building without the compiled kernel", file=sys.stderr)
        return []
    from Cython.Build import cythonize

    found = [
        Extension(
            ".".join(path.relative_to(SOURCE).with_suffix("").parts),
            [str(path)],
            include_dirs=[str(path.parent)],
            depends=[str(p) for p in (*path.parent.glob("*.pxi"), *SOURCE.rglob("*.h"))],
            extra_compile_args=["-O3", "-g0"],
            define_macros=[("Py_LIMITED_API", "0x030C0000")] if STABLE_ABI else [],
            py_limited_api=STABLE_ABI,
        )
        for path in sorted(SOURCE.rglob("*.pyx"))
    ]
    return cythonize(
        found,
        build_dir="build/cython",
        language_level=3,
        compiler_directives={
            "boundscheck": False,
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
            "embedsignature": False,
        },
    )


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildKernel},
    options={
        "build_ext": {"parallel": os.cpu_count()},
        **({"bdist_wheel": {"py_limited_api": "cp312"}} if STABLE_ABI and not PURE else {}),
    },
)
