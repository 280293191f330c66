"""Builds the compiled kernel (stable ABI, one wheel for CPython 3.11 and later)."""

from setuptools import setup

setup()
